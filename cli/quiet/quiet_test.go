package quiet_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/cli/quiet"
)

// TestComplaints has libraries say what they say, through klog.
func TestComplaints(t *testing.T) {
	for _, test := range []struct {
		name, message string
		err           error
		kept          bool
	}{
		{"a client that has gone", "Error on socket receive", errors.New("use of closed network connection"), false},
		{"a runtime that says no", "RunPodSandbox from runtime service failed", errors.New("no"), false},
		{"a pod that has gone", "Failed to watch", errors.New("configmaps is forbidden: no relationship found between node 'n' and this object"), false},
		{"a server that has gone", "Failed to watch", errors.New("connection refused"), true},
		{"a namespace that goes", "Server rejected event (will not retry!)", errors.New("unable to create new content in namespace x because it is being terminated"), false},
		{"a namespace that has gone", "Server rejected event (will not retry!)", errors.New(`namespaces "x" not found`), false},
		{"an event that is wrong", "Server rejected event (will not retry!)", errors.New("invalid"), true},
		{"nothing is known of it", "something else", nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			logger := slog.New(quiet.New(slog.NewTextHandler(&b, nil))).With("a", 1).WithGroup("g")
			klog.SetSlogLogger(logger)
			defer klog.ClearLogger()
			klog.ErrorS(test.err, test.message)
			klog.Flush()
			if kept := strings.Contains(b.String(), test.message); kept != test.kept {
				t.Errorf("the log is %q", b.String())
			}
		})
	}
}
