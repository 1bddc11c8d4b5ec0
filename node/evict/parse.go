package evict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// signals are all that thresholds can be of.
var signals = []Signal{Memory, Disk, Inodes, ImageDisk, ImageInodes, PIDs}

// Settings are thresholds as the flags of kubelets say them.
type Settings struct {
	// Hard and Soft are lists such as "memory.available<100Mi,nodefs.available<10%".
	// What is below a soft threshold may be so for the time that Grace says, a list
	// such as "memory.available=1m30s".
	Hard, Soft, Grace string
}

// Parse reads thresholds. Compat: those of 0% and 100% are left out, and errors
// have a kubelet's words.
func (s Settings) Parse() ([]Threshold, error) {
	hard, err := thresholds(s.Hard)
	if err != nil {
		return nil, err
	}
	soft, err := thresholds(s.Soft)
	if err != nil {
		return nil, err
	}
	graces, err := graces(s.Grace)
	if err != nil {
		return nil, err
	}
	for i := range soft {
		grace, ok := graces[soft[i].Signal]
		if !ok {
			return nil, fmt.Errorf("grace period must be specified for the soft eviction threshold %v", soft[i].Signal)
		}
		soft[i].Grace = grace
	}
	return append(hard, soft...), nil
}

// pairs reads a list of signals, each with something behind a separator. The last
// of those for one signal counts.
func pairs(text, separator string) (order []Signal, values map[Signal]string, err error) {
	values = map[Signal]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		name, value, found := strings.Cut(pair, separator)
		signal := Signal(strings.TrimSpace(name))
		switch {
		case !found:
			return nil, nil, fmt.Errorf("malformed pair %q, expect string%sstring", pair, separator)
		case !slices.Contains(signals, signal):
			return nil, nil, fmt.Errorf("unsupported eviction signal %v", signal)
		}
		if _, again := values[signal]; !again {
			order = append(order, signal)
		}
		values[signal] = strings.TrimSpace(value)
	}
	return order, values, nil
}

func thresholds(text string) ([]Threshold, error) {
	order, values, err := pairs(text, "<")
	if err != nil {
		return nil, err
	}
	var all []Threshold
	for _, signal := range order {
		t, err := threshold(signal, values[signal])
		if err != nil {
			return nil, err
		}
		if t.Percent > 0 && t.Percent < 100 || t.Quantity > 0 {
			all = append(all, t)
		}
	}
	return all, nil
}

func threshold(signal Signal, value string) (Threshold, error) {
	if text, percent := strings.CutSuffix(value, "%"); percent {
		part, err := strconv.ParseFloat(text, 32)
		switch {
		case err != nil:
			return Threshold{}, fmt.Errorf("eviction percentage threshold %v: %w", signal, err)
		case part < 0:
			return Threshold{}, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, value)
		case part > 100:
			return Threshold{}, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, value)
		}
		return Threshold{Signal: signal, Percent: float32(part)}, nil
	}
	quantity, err := resource.ParseQuantity(value)
	switch {
	case err != nil:
		return Threshold{}, fmt.Errorf("eviction threshold %v: %q: %w", signal, value, err)
	case quantity.Sign() <= 0:
		return Threshold{}, fmt.Errorf("eviction threshold %v must be positive: %s", signal, &quantity)
	}
	return Threshold{Signal: signal, Quantity: quantity.Value()}, nil
}

func graces(text string) (map[Signal]time.Duration, error) {
	_, values, err := pairs(text, "=")
	if err != nil {
		return nil, err
	}
	all := map[Signal]time.Duration{}
	for signal, value := range values {
		grace, err := time.ParseDuration(value)
		switch {
		case err != nil:
			return nil, fmt.Errorf("eviction grace period %v: %w", signal, err)
		case grace < 0:
			return nil, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", value)
		}
		all[signal] = grace
	}
	return all, nil
}

// String is a threshold as flags say it.
func (t Threshold) String() string {
	if t.Percent > 0 {
		return fmt.Sprintf("%s<%v%%", t.Signal, t.Percent)
	}
	return fmt.Sprintf("%s<%s", t.Signal, amount(t.Signal, t.Quantity))
}
