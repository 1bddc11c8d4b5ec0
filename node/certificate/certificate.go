// Package certificate keeps the certificate that a node serves with valid.
//
// In comes who issues certificates; out comes one to show to whoever connects. It
// is renewed when most of its life is over, while connections and listeners stay.
// What always holds: Get waits for nobody, and when the issuer fails the one before
// is shown while new tries are made.
package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Compat: a certificate is renewed when 70 to 90 percent of its life are over, so
// that nodes that began together do not ask together.
const (
	soonest = 0.7
	spread  = 0.2
)

// Pauses before an issuer that failed is asked again.
const firstPause, longestPause = 10 * time.Second, 10 * time.Minute

// Issue makes a new certificate.
type Issue func() (*tls.Certificate, error)

// Keeper has a certificate that is valid.
type Keeper struct {
	issue  Issue
	logger *slog.Logger

	mu  sync.Mutex // guards the fields below
	now *tls.Certificate
	due time.Time // when it is to be renewed
}

// New returns a keeper that has its first certificate.
func New(issue Issue, logger *slog.Logger) (*Keeper, error) {
	k := &Keeper{issue: issue, logger: logger}
	return k, k.renew()
}

// Get is the certificate to show now, for a tls.Config.
func (k *Keeper) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now, nil
}

// Run renews the certificate in time until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	pause := firstPause
	for {
		k.mu.Lock()
		wait := time.Until(k.due)
		k.mu.Unlock()
		if wait <= 0 {
			err := k.renew()
			if err == nil {
				pause = firstPause
				continue
			}
			k.logger.Warn("this node's certificate is not renewed yet", "error", err)
			wait, pause = pause, min(2*pause, longestPause)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (k *Keeper) renew() error {
	next, err := k.issue()
	if err != nil {
		return err
	}
	leaf := next.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(next.Certificate[0]); err != nil {
			return err
		}
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now, k.due = next, leaf.NotBefore.Add(time.Duration((soonest+spread*rand.Float64())*float64(life)))
	return nil
}
