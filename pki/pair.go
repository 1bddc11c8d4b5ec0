package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// PEM block types. Keys are written in the EC form, which Kubernetes' own
// programs read; keys brought along may have the general one.
const (
	certificateBlock = "CERTIFICATE"
	ecKeyBlock       = "EC PRIVATE KEY"
	anyKeyBlock      = "PRIVATE KEY"
)

// pair is a certificate with its key, and both as the bytes of a file.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// sign makes a certificate for a key; parent is the template itself when the
// certificate signs itself. The serial number is random.
func sign(template, parent *x509.Certificate, signer crypto.Signer, key *ecdsa.PrivateKey) (*pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	p := &pair{cert: cert, key: key}
	p.pem = append(p.certPEM(), keyPEM...)
	return p, nil
}

func (p *pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: p.cert.Raw})
}

// keyPEM is the key's part of the file.
func (p *pair) keyPEM() []byte {
	return p.pem[len(p.certPEM()):]
}

// forTLS is what is shown to the other side of a connection.
func (p *pair) forTLS() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key, Leaf: p.cert}
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: ecKeyBlock, Bytes: der}), nil
}

// decodePair reads a file of one certificate and its key, in any order.
// Errors say what is wrong and never quote the content, which is secret.
func decodePair(data []byte) (*pair, error) {
	var p pair
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case certificateBlock:
			if p.cert != nil {
				return nil, errors.New("more than one certificate")
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("bad certificate: %w", err)
			}
			p.cert = cert
		case ecKeyBlock, anyKeyBlock:
			key, err := parseKey(block)
			if err != nil {
				return nil, err
			}
			p.key = key
		}
	}
	switch {
	case p.cert == nil:
		return nil, errors.New("no certificate in it")
	case p.key == nil:
		return nil, errors.New("no private key in it")
	case !p.key.PublicKey.Equal(p.cert.PublicKey):
		return nil, errors.New("the key is not the certificate's")
	}
	key, err := encodeKey(p.key)
	if err != nil {
		return nil, err
	}
	p.pem = append(p.certPEM(), key...)
	return &p, nil
}

// decodeKey reads a file of one private key.
func decodeKey(data []byte) (*ecdsa.PrivateKey, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == ecKeyBlock || block.Type == anyKeyBlock {
			return parseKey(block)
		}
	}
	return nil, errors.New("no private key in it")
}

// parseKey leaves the parser's error out: it could quote the key.
func parseKey(block *pem.Block) (*ecdsa.PrivateKey, error) {
	if block.Type == ecKeyBlock {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, errors.New("bad private key")
		}
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("bad private key")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the private key is a %T, not an ECDSA key", parsed)
	}
	return key, nil
}
