package evict

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings Settings
		want     []Threshold
		wrong    string
	}{
		{name: "nothing"},
		{
			name: "a kubelet's", settings: Settings{Hard: DefaultHard},
			want: []Threshold{
				{Signal: Memory, Quantity: 100 << 20},
				{Signal: Disk, Percent: 10},
				{Signal: Inodes, Percent: 5},
				{Signal: ImageDisk, Percent: 15},
				{Signal: ImageInodes, Percent: 5},
			},
		},
		{name: "spaces and parts of a percent", settings: Settings{Hard: "nodefs.available < 7.5%,, pid.available<1k"}, want: []Threshold{{Signal: Disk, Percent: 7.5}, {Signal: PIDs, Quantity: 1000}}},
		{name: "none and all are left out", settings: Settings{Hard: "nodefs.available<0%,imagefs.available<100%"}},
		{name: "the last one counts", settings: Settings{Hard: "memory.available<1Gi,memory.available<2Gi"}, want: []Threshold{{Signal: Memory, Quantity: 2 << 30}}},
		{
			name: "soft", settings: Settings{Hard: "memory.available<1Gi", Soft: "memory.available<2Gi", Grace: "memory.available=1m30s"},
			want: []Threshold{{Signal: Memory, Quantity: 1 << 30}, {Signal: Memory, Quantity: 2 << 30, Grace: 90 * time.Second}},
		},
		{name: "no operator", settings: Settings{Hard: "memory.available=1Gi"}, wrong: `malformed pair "memory.available=1Gi", expect string<string`},
		{name: "no such signal", settings: Settings{Hard: "memory.free<1Gi"}, wrong: "unsupported eviction signal memory.free"},
		{name: "no number", settings: Settings{Hard: "memory.available<much"}, wrong: `eviction threshold memory.available: "much": quantities must match`},
		{name: "no part", settings: Settings{Hard: "memory.available<much%"}, wrong: "eviction percentage threshold memory.available: strconv.ParseFloat"},
		{name: "negative", settings: Settings{Hard: "memory.available<-1Gi"}, wrong: "eviction threshold memory.available must be positive: -1Gi"},
		{name: "less than nothing", settings: Settings{Hard: "memory.available<-5%"}, wrong: "eviction percentage threshold memory.available must be >= 0%: -5%"},
		{name: "more than all", settings: Settings{Hard: "memory.available<101%"}, wrong: "eviction percentage threshold memory.available must be <= 100%: 101%"},
		{name: "soft without grace", settings: Settings{Soft: "memory.available<2Gi"}, wrong: "grace period must be specified for the soft eviction threshold memory.available"},
		{name: "a grace that is none", settings: Settings{Grace: "memory.available=soon"}, wrong: "eviction grace period memory.available: time: invalid duration"},
		{name: "a negative grace", settings: Settings{Grace: "memory.available=-1s"}, wrong: "invalid eviction grace period specified: -1s, must be a positive value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.settings.Parse()
			if test.wrong != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.wrong) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			var texts []string
			for _, one := range got {
				if one.Grace == 0 {
					texts = append(texts, one.String())
				}
			}
			again, err := Settings{Hard: strings.Join(texts, ",")}.Parse()
			if err != nil || len(again) != len(texts) {
				t.Errorf("%v is read as %v, %v", texts, again, err)
			}
		})
	}
}
