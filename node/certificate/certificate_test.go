package certificate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/node/certificate"
)

const life = time.Hour

// issuer makes certificates that last for an hour.
type issuer struct {
	made atomic.Int64
	down atomic.Bool
}

func (i *issuer) issue() (*tls.Certificate, error) {
	if i.down.Load() {
		return nil, errors.New("nobody signs")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(i.made.Add(1)), NotBefore: time.Now(), NotAfter: time.Now().Add(life)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// shown is the certificate that somebody who connects sees.
func shown(t *testing.T, cfg *tls.Config) *x509.Certificate {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		s := tls.Server(server, cfg)
		_ = s.Handshake() // the client says whether it went well
	}()
	c := tls.Client(client, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is looked at below
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	leaf := c.ConnectionState().PeerCertificates[0]
	_, _ = client.Close(), server.Close()
	return leaf
}

// TestRenewal lets a day pass: whoever connects sees a certificate that is valid,
// also when nobody signs for a while.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		k, err := certificate.New(i.issue, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Run(ctx) }()
		cfg := &tls.Config{GetCertificate: k.Get} //nolint:gosec // of a test
		for minute := range 24 * 60 {
			synctest.Wait()
			if minute%60 == 0 || minute%60 == 50 {
				if leaf := shown(t, cfg); time.Now().After(leaf.NotAfter) {
					t.Fatalf("after %d minutes the certificate has ended at %s", minute, leaf.NotAfter)
				}
			}
			i.down.Store(minute >= 600 && minute < 605)
			time.Sleep(time.Minute)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if made := i.made.Load(); made < 26 || made > 36 {
			t.Errorf("%d certificates in a day", made)
		}
	})
}

func TestNobodySigns(t *testing.T) {
	i := &issuer{}
	i.down.Store(true)
	if _, err := certificate.New(i.issue, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("it has none")
	}
}
