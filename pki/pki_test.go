package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/pki"
)

var files = []string{"admin.pem", "ca.pem", "front-proxy-ca.pem", "front-proxy.pem", "node-client.pem", "service-account.pem", "serving.pem"}

func load(t *testing.T, dir string, hosts ...string) *pki.Authority {
	t.Helper()
	a, err := pki.Load(dir, hosts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// contents are the folder's files by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[e.Name()] = string(data)
	}
	return found
}

// changed are the files that differ.
func changed(before, after map[string]string) []string {
	var names []string
	for _, name := range files {
		if before[name] != after[name] {
			names = append(names, name)
		}
	}
	return names
}

func TestLoadTwiceIsTheSame(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "pki")
	first := load(t, dir, "10.0.0.1")
	before := contents(t, dir)
	second := load(t, dir, "10.0.0.1")
	if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
		t.Errorf("files changed:\n%s", diff)
	}
	for name, same := range map[string]bool{
		"ca":              bytes.Equal(first.CACert, second.CACert),
		"serving":         bytes.Equal(first.ServingCert.Certificate[0], second.ServingCert.Certificate[0]),
		"admin cert":      bytes.Equal(first.AdminCert, second.AdminCert),
		"admin key":       bytes.Equal(first.AdminKey, second.AdminKey),
		"service account": first.ServiceAccountKey.(*ecdsa.PrivateKey).Equal(second.ServiceAccountKey),
	} {
		if !same {
			t.Errorf("%s differs after a restart", name)
		}
	}
}

func TestPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	load(t, dir)
	check := func() {
		t.Helper()
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o700 {
			t.Errorf("folder is %v", got)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode(); got != fs.FileMode(0o600) {
				t.Errorf("%s is %v", e.Name(), got)
			}
		}
		if diff := cmp.Diff(files, names); diff != "" {
			t.Errorf("files:\n%s", diff)
		}
	}
	check()

	// What was opened up meanwhile is closed again.
	for _, name := range files {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	load(t, dir)
	check()
}

func TestServingNames(t *testing.T) {
	dir := t.TempDir()
	a := load(t, dir, "192.0.2.7", "api.example.org", pki.ServiceAddress, "localhost", "")
	leaf := a.ServingCert.Leaf
	var ips []string
	for _, ip := range leaf.IPAddresses {
		ips = append(ips, ip.String())
	}
	if diff := cmp.Diff([]string{"127.0.0.1", "::1", "192.0.2.7", "10.0.0.1"}, ips); diff != "" {
		t.Errorf("addresses:\n%s", diff)
	}
	want := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "api.example.org",
	}
	if diff := cmp.Diff(want, leaf.DNSNames); diff != "" {
		t.Errorf("names:\n%s", diff)
	}

	before := contents(t, dir)
	load(t, dir, pki.ServiceAddress, "api.example.org", "192.0.2.7") // the order says nothing
	if got := changed(before, contents(t, dir)); got != nil {
		t.Errorf("same names in another order changed %v", got)
	}
	load(t, dir, "192.0.2.8")
	if diff := cmp.Diff([]string{"serving.pem"}, changed(before, contents(t, dir))); diff != "" {
		t.Errorf("another host changed:\n%s", diff)
	}
}

func TestUnspecifiedHostIsThisMachine(t *testing.T) {
	a := load(t, "", "0.0.0.0")
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	if !slices.Contains(a.ServingCert.Leaf.DNSNames, host) {
		t.Errorf("names %v lack %s", a.ServingCert.Leaf.DNSNames, host)
	}
	for _, ip := range a.ServingCert.Leaf.IPAddresses {
		if ip.IsUnspecified() {
			t.Errorf("certificate is for %s", ip)
		}
	}
}

func TestRenewal(t *testing.T) {
	const day = 24 * time.Hour
	tests := []struct {
		name  string
		after time.Duration
		want  []string
	}{
		{"young", 300 * day, nil},
		{"leaves about to end", 330 * day, []string{"admin.pem", "front-proxy.pem", "node-client.pem", "serving.pem"}},
		{"leaves long ended", 3 * 365 * day, []string{"admin.pem", "front-proxy.pem", "node-client.pem", "serving.pem"}},
		{"authority about to end", 3400 * day, []string{"admin.pem", "ca.pem", "front-proxy-ca.pem", "front-proxy.pem", "node-client.pem", "serving.pem"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				first := load(t, dir)
				before := contents(t, dir)
				time.Sleep(test.after)
				second := load(t, dir)
				if diff := cmp.Diff(test.want, changed(before, contents(t, dir))); diff != "" {
					t.Errorf("renewed:\n%s", diff)
				}
				// A client that was given the first certificate still believes the server.
				old := x509.NewCertPool()
				old.AppendCertsFromPEM(first.CACert)
				if _, err := second.ServingCert.Leaf.Verify(x509.VerifyOptions{Roots: old, DNSName: "localhost"}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestGetCertificateRenews(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := load(t, dir)
		first, err := a.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(360 * 24 * time.Hour)
		second, err := a.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if first == second || time.Until(second.Leaf.NotAfter) < 300*24*time.Hour {
			t.Errorf("not renewed: ends %v", second.Leaf.NotAfter)
		}
		if again := load(t, dir); !bytes.Equal(again.ServingCert.Certificate[0], second.Certificate[0]) {
			t.Error("the renewed certificate was not kept")
		}
	})
}

func TestCorruptFilesAreNamed(t *testing.T) {
	for _, name := range files {
		for what, spoil := range map[string]func([]byte) []byte{
			"empty":     func([]byte) []byte { return nil },
			"cut":       func(b []byte) []byte { return b[:len(b)/2] },
			"not PEM":   func([]byte) []byte { return []byte("hello") },
			"bad bytes": func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("M"), []byte("A")) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				dir := t.TempDir()
				load(t, dir)
				path := filepath.Join(dir, name)
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, spoil(data), 0o600); err != nil {
					t.Fatal(err)
				}
				spoiled := contents(t, dir)
				_, err = pki.Load(dir, nil)
				if err == nil || !strings.Contains(err.Error(), path) {
					t.Fatalf("got %v, want an error that names %s", err, path)
				}
				if diff := cmp.Diff(spoiled, contents(t, dir)); diff != "" {
					t.Errorf("files changed:\n%s", diff)
				}
			})
		}
	}
}

func TestForeignLeavesAreReplaced(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	load(t, dir)
	load(t, other)
	for _, name := range []string{"serving.pem", "admin.pem", "front-proxy.pem"} {
		if err := os.Rename(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	a := load(t, dir)
	if err := a.ServingCert.Leaf.CheckSignatureFrom(a.CA); err != nil {
		t.Error(err)
	}
}

func TestHandshake(t *testing.T) {
	a := load(t, "")
	client, err := tls.X509KeyPair(a.AdminCert, a.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: a.GetCertificate, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.ClientPool(),
	})
	if err != nil {
		t.Fatal(err)
	}
	var who string
	var groups []string
	s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		subject := r.TLS.PeerCertificates[0].Subject
		who, groups = subject.CommonName, subject.Organization
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.CACert)
	c := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}},
	}}
	defer c.CloseIdleConnections()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get("https://localhost:" + port)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if who != "setpoint-admin" || !slices.Equal(groups, []string{"system:masters"}) {
		t.Errorf("server saw %q in %q", who, groups)
	}
}

func TestIssueClient(t *testing.T) {
	a := load(t, "")
	cert, key, err := a.IssueClient("system:node:n1", []string{"system:nodes"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Leaf.Verify(x509.VerifyOptions{Roots: a.ClientPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}

func TestFrontProxyHasAnAuthorityOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := load(t, dir)
		verify := func(cert *x509.Certificate, pool *x509.CertPool) error {
			_, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			return err
		}
		proxy, err := a.FrontProxy()
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(proxy.Leaf, a.FrontProxyPool()); err != nil {
			t.Error(err)
		}
		if verify(proxy.Leaf, a.ClientPool()) == nil {
			t.Error("the front proxy passes for a client")
		}
		admin, err := tls.X509KeyPair(a.AdminCert, a.AdminKey)
		if err != nil {
			t.Fatal(err)
		}
		if verify(admin.Leaf, a.FrontProxyPool()) == nil {
			t.Error("a client passes for a front proxy")
		}
		time.Sleep(360 * 24 * time.Hour)
		renewed, err := a.FrontProxy()
		if err != nil {
			t.Fatal(err)
		}
		if renewed == proxy || verify(renewed.Leaf, a.FrontProxyPool()) != nil {
			t.Error("the front proxy's certificate was not renewed")
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
			if _, err := pki.Load("", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) {
		dir := b.TempDir()
		n := 0
		for b.Loop() {
			n++
			if _, err := pki.Load(filepath.Join(dir, string(rune('a'+n%26)), time.Now().Format("150405.000000000")), nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		dir := b.TempDir()
		for b.Loop() {
			if _, err := pki.Load(dir, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
