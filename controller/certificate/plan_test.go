package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/plantest"
)

var (
	noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

	node = pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}
	jane = pkix.Name{CommonName: "jane", Organization: []string{"dev"}}
)

// asks is a request's PEM.
func asks(t *testing.T, of x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &of, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

type edit = func(*request)

func requestOf(t *testing.T, signer string, of x509.CertificateRequest, usages []certificatesv1.KeyUsage, edits ...edit) *request {
	t.Helper()
	r := &request{
		ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.NewTime(noon.Add(-10 * time.Minute))},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: asks(t, of), SignerName: signer, Usages: usages, Username: "boot"},
	}
	for _, e := range edits {
		e(r)
	}
	return r
}

func by(user string) edit { return func(r *request) { r.Spec.Username = user } }

func issued(pem string) edit { return func(r *request) { r.Status.Certificate = []byte(pem) } }

func since(kind certificatesv1.RequestConditionType, ago time.Duration) edit {
	return func(r *request) {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(noon.Add(-ago)),
		})
	}
}

func lives(seconds int32) edit {
	return func(r *request) { r.Spec.ExpirationSeconds = &seconds }
}

var (
	clientUse  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUse = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

const (
	kubelet = certificatesv1.KubeAPIServerClientKubeletSignerName
	serving = certificatesv1.KubeletServingSignerName
	client  = certificatesv1.KubeAPIServerClientSignerName
	legacy  = "kubernetes.io/legacy-unknown"
)

func TestRecognize(t *testing.T) {
	ofNode, ofJane := x509.CertificateRequest{Subject: node}, x509.CertificateRequest{Subject: jane}
	named := x509.CertificateRequest{Subject: node, DNSNames: []string{"n1"}}
	cases := []struct {
		name string
		of   *request
	}{
		{"a new node", requestOf(t, kubelet, ofNode, clientUse)},
		{"a node that renews", requestOf(t, kubelet, ofNode, clientUse, by("system:node:n1"))},
		{"not a node's name", requestOf(t, kubelet, ofJane, clientUse)},
		{"for more than a client's use", requestOf(t, kubelet, ofNode, append(servingUse, clientUse...))},
		{"with names of machines", requestOf(t, kubelet, named, clientUse)},
		{"of another signer", requestOf(t, client, ofNode, clientUse)},
		{"for serving", requestOf(t, serving, ofNode, servingUse)},
		{"approved already", requestOf(t, kubelet, ofNode, clientUse, since(certificatesv1.CertificateApproved, 0))},
		{"denied already", requestOf(t, kubelet, ofNode, clientUse, since(certificatesv1.CertificateDenied, 0))},
		{"issued already", requestOf(t, kubelet, ofNode, clientUse, issued("x"))},
	}
	var b strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&b, "# %s\n", c.name)
		for _, claim := range recognize(c.of) {
			fmt.Fprintf(&b, "if %s: %s\n", claim.subresource, claim.message)
		}
		b.WriteByte('\n')
	}
	plantest.Golden(t, "recognize.txt", b.String())
}

func TestSign(t *testing.T) {
	approved := since(certificatesv1.CertificateApproved, 0)
	ofNode, ofJane := x509.CertificateRequest{Subject: node}, x509.CertificateRequest{Subject: jane}
	named := x509.CertificateRequest{Subject: node, DNSNames: []string{"n1"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 7)}}
	many := []certificatesv1.KeyUsage{certificatesv1.UsageSMIME, certificatesv1.UsageEmailProtection, certificatesv1.UsageCertSign, certificatesv1.UsageAny}
	cases := []struct {
		name string
		of   *request
	}{
		{"a node's client certificate", requestOf(t, kubelet, ofNode, clientUse, approved)},
		{"a node's client certificate for somebody else", requestOf(t, kubelet, ofJane, clientUse, approved)},
		{"a node's serving certificate", requestOf(t, serving, named, servingUse, approved)},
		{"a serving certificate without names", requestOf(t, serving, ofNode, servingUse, approved)},
		{"a serving certificate for clients", requestOf(t, serving, named, clientUse, approved)},
		{"a client", requestOf(t, client, ofJane, clientUse, approved)},
		{"a client that would serve", requestOf(t, client, ofJane, servingUse, approved)},
		{"a client without its use", requestOf(t, client, ofJane, clientUse[:1], approved)},
		{"anything, of old", requestOf(t, legacy, ofJane, many, approved)},
		{"a use that nobody knows", requestOf(t, legacy, ofJane, []certificatesv1.KeyUsage{"juggling"}, approved)},
		{"an hour", requestOf(t, client, ofJane, clientUse, approved, lives(3600))},
		{"a minute is ten", requestOf(t, client, ofJane, clientUse, approved, lives(60))},
		{"ten years is one", requestOf(t, client, ofJane, clientUse, approved, lives(10*365*24*3600))},
		{"somebody else's signer", requestOf(t, "example.org/mine", ofJane, clientUse, approved)},
		{"not approved", requestOf(t, client, ofJane, clientUse)},
		{"approved and denied", requestOf(t, client, ofJane, clientUse, approved, since(certificatesv1.CertificateDenied, 0))},
		{"failed", requestOf(t, client, ofJane, clientUse, approved, since(certificatesv1.CertificateFailed, 0))},
		{"done", requestOf(t, client, ofJane, clientUse, approved, issued("x"))},
	}
	ca := Authority{Certificate: &x509.Certificate{NotAfter: noon.Add(10 * year)}, Life: year}
	var b strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(ca, c.of))
	}
	ca.Certificate.NotAfter = noon.Add(24 * time.Hour)
	fmt.Fprintf(&b, "# an authority that ends tomorrow\n%s\n", describe(ca, cases[0].of))
	ca.Certificate.NotAfter = noon
	fmt.Fprintf(&b, "# an authority that has ended\n%s\n", describe(ca, cases[0].of))
	plantest.Golden(t, "sign.txt", b.String())
}

// describe writes down what is made of a request.
func describe(ca Authority, r *request) string {
	asked, wrong := due(r)
	switch {
	case wrong != nil:
		c := failed(wrong, noon)
		return fmt.Sprintf("%s %s: %s\n", c.Type, c.Reason, c.Message)
	case asked == nil:
		return "nothing\n"
	}
	is, err := ca.template(asked, r, noon)
	if err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return fmt.Sprintf("subject %s names %v %v\nfrom %v for %v\nuse %b extended %v authority %v\n",
		is.Subject, is.DNSNames, is.IPAddresses, is.NotBefore.Sub(noon), is.NotAfter.Sub(noon), is.KeyUsage, is.ExtKeyUsage, is.IsCA)
}

func TestLeft(t *testing.T) {
	of := x509.CertificateRequest{Subject: jane}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{NotAfter: noon.Add(20 * time.Minute)}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ending := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	half := 30 * time.Minute
	for _, c := range []struct {
		name  string
		edits []edit
		left  time.Duration
		ends  bool
	}{
		{name: "undecided", left: 24*time.Hour - 10*time.Minute, ends: true},
		{name: "denied", edits: []edit{since(certificatesv1.CertificateDenied, half)}, left: half, ends: true},
		{name: "failed", edits: []edit{since(certificatesv1.CertificateApproved, half), since(certificatesv1.CertificateFailed, half)}, left: half, ends: true},
		{name: "approved", edits: []edit{since(certificatesv1.CertificateApproved, half)}, left: 24*time.Hour - half, ends: true},
		{name: "issued", edits: []edit{since(certificatesv1.CertificateApproved, half), issued("unreadable")}, left: half, ends: true},
		{name: "issued long ago", edits: []edit{since(certificatesv1.CertificateApproved, 3*time.Hour), issued("unreadable")}, ends: true},
		{name: "issued for a short time", edits: []edit{since(certificatesv1.CertificateApproved, half), issued(ending)}, left: 20 * time.Minute, ends: true},
		{name: "decided at no time", edits: []edit{func(r *request) {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied}}
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d, ends := left(requestOf(t, client, of, clientUse, c.edits...), noon); d != c.left || ends != c.ends {
				t.Errorf("left %v, %v", d, ends)
			}
		})
	}
}
