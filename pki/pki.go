// Package pki makes and keeps the keys and certificates of one control plane.
//
// In comes a folder and the names the server is reached under; out comes an
// Authority with everything that TLS and tokens need. What is missing is made,
// what is there is used, what runs out or no longer fits is renewed:
//
//	ca.pem               certificate authority: certificate, key
//	serving.pem          the server's certificate, signed by the authority
//	admin.pem            a client certificate in group system:masters
//	service-account.pem  the key that signs service account tokens
//	front-proxy-ca.pem   authority of front proxies: certificate, key
//	front-proxy.pem      what the server shows when it speaks for its clients
//	node-client.pem      what the server shows to nodes
//
// A certificate and its key share a file, so that no crash can leave a pair
// that does not match. Files are 0600 in a folder of 0700 and appear whole or
// not at all. Every key is ECDSA P-256: making all seven costs about a
// millisecond, where one RSA key would cost a hundred.
//
// Front proxies have an authority of their own: whoever it vouches for may act
// as anyone, so no client's certificate may pass for one.
//
// The authorities' keys and the service account key are never replaced:
// clients and tokens outlive any renewal.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"sync"
	"time"
)

// ServiceAddress is the first address of the default service range; the
// kubernetes service has it, so clients in pods reach the server under it.
const ServiceAddress = "10.0.0.1"

// How long certificates live, and how long before their end they are renewed.
const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 365 * 24 * time.Hour
	leafLife       = 365 * 24 * time.Hour
	leafRenew      = 60 * 24 * time.Hour
	// clockSkew is how far behind ours the clock of a client may be.
	clockSkew = time.Hour
)

// Files in the folder.
const (
	authorityFile      = "ca.pem"
	servingFile        = "serving.pem"
	adminFile          = "admin.pem"
	serviceAccountFile = "service-account.pem"
	frontAuthorityFile = "front-proxy-ca.pem"
	frontProxyFile     = "front-proxy.pem"
	nodeClientFile     = "node-client.pem"
)

// Common names of the authorities.
const (
	authorityName      = "setpoint-ca"
	frontAuthorityName = "setpoint-front-proxy-ca"
)

// Who the admin certificate is for. Members of the group may do everything.
const (
	AdminUser  = "setpoint-admin"
	AdminGroup = "system:masters"
)

// FrontProxyUser is who the server is when it speaks for its clients.
const FrontProxyUser = "front-proxy-client"

// NodeClientUser is who the server is to nodes. Nodes ask the server what it
// may do there; it is in AdminGroup.
const NodeClientUser = "kube-apiserver-kubelet-client"

// Authority is the certificate authority of a control plane with the
// certificates and keys it made. Its exported fields do not change after Load.
type Authority struct {
	// CA is the authority's certificate and CACert the same as PEM, for
	// clients that verify the server and for the server that verifies clients.
	CA     *x509.Certificate
	CACert []byte
	// CAKey signs certificates.
	CAKey crypto.Signer
	// ServingCert is the server's certificate as of Load. A server that runs
	// for long uses GetCertificate instead, which renews it.
	ServingCert tls.Certificate
	// AdminCert and AdminKey are a client certificate and its key as PEM.
	AdminCert, AdminKey []byte
	// ServiceAccountKey signs service account tokens; it is an
	// *ecdsa.PrivateKey.
	ServiceAccountKey crypto.Signer
	// FrontProxyCACert is the certificate of the front proxies' authority as
	// PEM.
	FrontProxyCACert []byte

	folder *folder
	names  names
	own    signer // CA and CAKey
	front  signer // the front proxies' authority

	mu         sync.Mutex // guards the fields below
	serving    *tls.Certificate
	frontProxy *tls.Certificate
	nodeClient *tls.Certificate
}

// signer is an authority: what it is known by and what it signs with.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (s signer) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.cert)
	return pool
}

// Load returns the authority kept in dir and makes what is missing there; an
// empty dir keeps everything in memory.
//
// The serving certificate is for localhost, the loopback addresses, the names
// of the kubernetes service, and hosts, which may be names or addresses: the
// host the server listens on and the first service address. An unspecified
// address, such as 0.0.0.0, stands for all that this machine has. Load makes a
// new serving certificate when that list is another than the last one.
//
// A file that cannot be understood is an error that names it: nothing is ever
// made anew over something that may still be needed.
func Load(dir string, hosts []string) (*Authority, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	a := &Authority{folder: f, names: standardNames(hosts)}
	for _, step := range []func() error{
		a.loadAuthorities, a.loadServing, a.loadAdmin, a.loadServiceAccount, a.loadFrontProxy, a.loadNodeClient, f.flush,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
	}
	return a, nil
}

// GetCertificate is the server's certificate for a tls.Config; it renews the
// certificate in time. When the renewed certificate cannot be written it is
// used all the same, and made again at the next start.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.current(&a.serving, servingFile, a.issueServing)
}

// FrontProxy is the certificate that the server shows to other servers when it
// speaks for its clients. It is renewed as GetCertificate's is.
func (a *Authority) FrontProxy() (*tls.Certificate, error) {
	return a.current(&a.frontProxy, frontProxyFile, a.issueFrontProxy)
}

// NodeClient is the certificate that the server shows to nodes. It is renewed as
// GetCertificate's is.
func (a *Authority) NodeClient() (*tls.Certificate, error) {
	return a.current(&a.nodeClient, nodeClientFile, a.issueNodeClient)
}

// IsNodeClient says that a certificate is one that the server shows to nodes.
func IsNodeClient(cert *x509.Certificate) bool { return cert.Subject.CommonName == NodeClientUser }

// current is a certificate in use, made anew when it is about to end.
func (a *Authority) current(used **tls.Certificate, file string, issue func() (*pair, error)) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !nearEnd((*used).Leaf, leafRenew) {
		return *used, nil
	}
	p, err := issue()
	if err != nil {
		return nil, fmt.Errorf("pki: renew %s: %w", file, err)
	}
	*used = p.forTLS()
	a.folder.put(file, p.pem)
	_ = a.folder.flush() // only costs a renewal at the next start
	return *used, nil
}

// ClientPool verifies client certificates that this authority signed.
func (a *Authority) ClientPool() *x509.CertPool { return a.own.pool() }

// FrontProxyPool verifies the certificates of front proxies.
func (a *Authority) FrontProxyPool() *x509.CertPool { return a.front.pool() }

// AskedPool names all whose certificates the server wants to see: those who
// vouch for clients, and front proxies' authority.
func (a *Authority) AskedPool(clients *x509.CertPool) *x509.CertPool {
	pool := clients.Clone()
	pool.AddCert(a.front.cert)
	return pool
}

// IssueClient returns a new client certificate and key as PEM for a user in
// groups. Nothing of it is kept.
func (a *Authority) IssueClient(user string, groups []string) (cert, key []byte, err error) {
	p, err := a.issueClient(user, groups)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return p.certPEM(), p.keyPEM(), nil
}

// IssueServing returns a new certificate for a server of a user in groups that is
// reached under hosts, which are names or addresses. Nothing of it is kept. Such is
// what a node serves with.
func (a *Authority) IssueServing(user string, groups, hosts []string) (*tls.Certificate, error) {
	names := namesOf(hosts)
	p, err := a.own.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, DNSNames: names.dns, IPAddresses: names.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return p.forTLS(), nil
}

func (a *Authority) loadAuthorities() error {
	own, err := a.loadAuthority(authorityFile, authorityName)
	if err != nil {
		return err
	}
	front, err := a.loadAuthority(frontAuthorityFile, frontAuthorityName)
	if err != nil {
		return err
	}
	a.CA, a.CAKey, a.CACert = own.cert, own.key, own.certPEM()
	a.own = signer{own.cert, own.key}
	a.front, a.FrontProxyCACert = signer{front.cert, front.key}, front.certPEM()
	return nil
}

func (a *Authority) loadAuthority(file, name string) (*pair, error) {
	p, err := a.folder.pair(file)
	if err != nil {
		return nil, err
	}
	switch {
	case p != nil && !p.cert.IsCA:
		return nil, fmt.Errorf("%s: the certificate is not an authority's", a.folder.path(file))
	case p != nil && !nearEnd(p.cert, authorityRenew):
		return p, nil
	}
	// A new certificate for the same key and subject: what the old one signed
	// stays valid, and so do clients that trust the old one.
	if p, err = makeAuthority(name, p); err != nil {
		return nil, err
	}
	a.folder.put(file, p.pem)
	return p, nil
}

func (a *Authority) loadServing() error {
	p, err := a.folder.pair(servingFile)
	if err != nil {
		return err
	}
	if p == nil || !a.own.vouchesFor(p, x509.ExtKeyUsageServerAuth) || !a.names.sameAs(p.cert) {
		if p, err = a.issueServing(); err != nil {
			return err
		}
		a.folder.put(servingFile, p.pem)
	}
	a.serving = p.forTLS()
	a.ServingCert = *a.serving
	return nil
}

func (a *Authority) loadAdmin() error {
	p, err := a.folder.pair(adminFile)
	if err != nil {
		return err
	}
	if p == nil || !a.own.vouchesFor(p, x509.ExtKeyUsageClientAuth) {
		if p, err = a.issueClient(AdminUser, []string{AdminGroup}); err != nil {
			return err
		}
		a.folder.put(adminFile, p.pem)
	}
	a.AdminCert, a.AdminKey = p.certPEM(), p.keyPEM()
	return nil
}

func (a *Authority) loadServiceAccount() error {
	key, err := a.folder.key(serviceAccountFile)
	if err != nil {
		return err
	}
	if key == nil {
		if key, err = newKey(); err != nil {
			return err
		}
		data, err := encodeKey(key)
		if err != nil {
			return err
		}
		a.folder.put(serviceAccountFile, data)
	}
	a.ServiceAccountKey = key
	return nil
}

func (a *Authority) loadFrontProxy() (err error) {
	a.frontProxy, err = a.loadClient(frontProxyFile, a.front, a.issueFrontProxy)
	return err
}

func (a *Authority) loadNodeClient() (err error) {
	a.nodeClient, err = a.loadClient(nodeClientFile, a.own, a.issueNodeClient)
	return err
}

// loadClient reads a certificate that the server shows to others, or makes it.
func (a *Authority) loadClient(file string, by signer, issue func() (*pair, error)) (*tls.Certificate, error) {
	p, err := a.folder.pair(file)
	if err != nil {
		return nil, err
	}
	if p == nil || !by.vouchesFor(p, x509.ExtKeyUsageClientAuth) {
		if p, err = issue(); err != nil {
			return nil, err
		}
		a.folder.put(file, p.pem)
	}
	return p.forTLS(), nil
}

// vouchesFor says whether a certificate can go on being used: it is this
// authority's, for the given use, and not about to end.
func (s signer) vouchesFor(p *pair, use x509.ExtKeyUsage) bool {
	_, err := p.cert.Verify(x509.VerifyOptions{Roots: s.pool(), KeyUsages: []x509.ExtKeyUsage{use}})
	return err == nil && !nearEnd(p.cert, leafRenew)
}

func (a *Authority) issueServing() (*pair, error) {
	return a.own.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "setpoint"},
		DNSNames:    a.names.dns,
		IPAddresses: a.names.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

func (a *Authority) issueClient(user string, groups []string) (*pair, error) {
	return a.own.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issueFrontProxy() (*pair, error) {
	return a.front.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: FrontProxyUser},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issueNodeClient() (*pair, error) {
	return a.issueClient(NodeClientUser, []string{AdminGroup})
}

// issue fills in what every certificate has, and signs it for a new key.
func (s signer) issue(template *x509.Certificate) (*pair, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template.NotBefore = now.Add(-clockSkew)
	template.NotAfter = now.Add(leafLife)
	if template.NotAfter.After(s.cert.NotAfter) {
		template.NotAfter = s.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	return sign(template, s.cert, s.key, key)
}

// makeAuthority makes an authority, or renews one.
func makeAuthority(name string, old *pair) (*pair, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	var key *ecdsa.PrivateKey
	if old != nil {
		key = old.key
		template.Subject = old.cert.Subject
		template.SubjectKeyId = old.cert.SubjectKeyId
	} else {
		var err error
		if key, err = newKey(); err != nil {
			return nil, err
		}
	}
	return sign(template, template, key, key)
}

func nearEnd(cert *x509.Certificate, margin time.Duration) bool {
	return time.Now().Add(margin).After(cert.NotAfter)
}
