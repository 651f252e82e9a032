// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// certificateLife is longer than any cluster of this kind is kept.
const certificateLife = 5 * 365 * 24 * time.Hour

// authority signs the certificates of one cluster, those of servers and of
// clients alike.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// subject is whom a certificate is for.
type subject struct {
	User      string
	Groups    []string
	Names     []string
	Addresses []netip.Addr
}

// loadAuthority reads the authority of a directory, and makes it where there is
// none yet.
func loadAuthority(dir string) (*authority, error) {
	certPath, keyPath := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	certPEM, err := os.ReadFile(certPath)
	if errors.Is(err, os.ErrNotExist) {
		return newAuthority(certPath, keyPath)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %s or %s is not PEM", certPath, keyPath)
	}
	certificate, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority %s: %w", certPath, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority %s: %w", keyPath, err)
	}
	return &authority{certificate: certificate, key: key}, nil
}

func newAuthority(certPath, keyPath string) (*authority, error) {
	key, err := newKey(keyPath)
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: "gpushare-test-cluster"})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's certificate authority: %w", err)
	}
	return &authority{certificate: certificate, key: key}, writePEM(certPath, "CERTIFICATE", der)
}

// issue writes base.crt and base.key, a certificate for s and its key.
func (a *authority) issue(base string, s subject) error {
	key, err := newKey(base + ".key")
	if err != nil {
		return err
	}
	template, err := newTemplate(pkix.Name{CommonName: s.User, Organization: s.Groups})
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.Names)+len(s.Addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	template.DNSNames = s.Names
	for _, address := range s.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("issue a certificate for %s: %w", s.User, err)
	}
	return writePEM(base+".crt", "CERTIFICATE", der)
}

func newTemplate(name pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      name,
		// A clock that is set back a little must not stop the cluster.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(certificateLife),
	}, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("write a certificate or key: %w", err)
	}
	return nil
}
