package token

import (
	"bytes"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// verdict is what becomes of a secret.
type verdict string

const (
	leave  verdict = "leave"
	fill   verdict = "fill"
	remove verdict = "remove"
)

// plan says what becomes of a secret that is an account's, or nobody's.
func plan(s *corev1.Secret, account *corev1.ServiceAccount, rootCA []byte) verdict {
	switch {
	case s.DeletionTimestamp != nil:
		return leave
	case account == nil:
		return remove
	case len(s.Data[corev1.ServiceAccountTokenKey]) == 0, len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0, stale(s, rootCA):
		return fill
	default:
		return leave
	}
}

func stale(s *corev1.Secret, rootCA []byte) bool {
	return len(rootCA) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], rootCA)
}

// filled is a secret with all that it lacks but the token.
func filled(s *corev1.Secret, account *corev1.ServiceAccount, rootCA []byte) *corev1.Secret {
	s = s.DeepCopy()
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	if stale(s, rootCA) {
		s.Data[corev1.ServiceAccountRootCAKey] = rootCA
	}
	if len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		s.Data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	s.Annotations[corev1.ServiceAccountNameKey], s.Annotations[corev1.ServiceAccountUIDKey] = account.Name, string(account.UID)
	return s
}

// of says whether a secret is that of an account: by its name and, where the
// secret says one, its UID.
func of(s *corev1.Secret, account *corev1.ServiceAccount) bool {
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	return s.Annotations[corev1.ServiceAccountNameKey] == account.Name && (uid == "" || uid == string(account.UID))
}

// names says whether an account names a secret.
func names(account *corev1.ServiceAccount, secret string) bool {
	return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret })
}

// without is an account that does not name a secret.
func without(account *corev1.ServiceAccount, secret string) *corev1.ServiceAccount {
	account = account.DeepCopy()
	account.Secrets = slices.DeleteFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret })
	return account
}
