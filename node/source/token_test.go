package source

import (
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name      string
		life, age time.Duration
		early     time.Duration
		want      bool
	}{
		{"new", time.Hour, 0, 0, false},
		{"just before four fifths", time.Hour, 48*time.Minute - time.Second, 0, false},
		{"after four fifths", time.Hour, 48*time.Minute + time.Second, 0, true},
		{"a little early", time.Hour, 48*time.Minute - time.Second, 5 * time.Second, true},
		{"a day old", 30 * 24 * time.Hour, 24*time.Hour + time.Second, 0, true},
		{"nearly a day old", 30 * 24 * time.Hour, 24*time.Hour - time.Second, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			tk := &token{life: test.life, expires: begun.Add(test.life)}
			if got := tk.due(begun.Add(test.age), test.early); got != test.want {
				t.Errorf("due is %v, want %v", got, test.want)
			}
		})
	}
}
