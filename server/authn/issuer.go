package authn

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/authentication"
	conversion "k8s.io/kubernetes/pkg/apis/authentication/v1"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Where the documents of an Issuer are served.
const (
	OpenIDConfigPath = serviceaccount.OpenIDConfigPath
	JWKSPath         = serviceaccount.JWKSPath
)

// IssuerConfig says how service account tokens are made.
type IssuerConfig struct {
	// URL is who tokens are from; empty means DefaultIssuer.
	URL string
	// Key signs: an *ecdsa.PrivateKey or *rsa.PrivateKey.
	Key crypto.Signer
	// Keys are further public keys that tokens may be signed with; the
	// documents list them.
	Keys []any
	// Audiences are whom tokens are for when a request does not say; none
	// means the URL.
	Audiences []string
	// MaxLife is the longest that a token lives; zero means as asked.
	MaxLife time.Duration
	// Address is the host and port that JWKSPath is reached under from
	// outside, or JWKSURL says where the keys are found.
	Address, JWKSURL string
	// Objects are what tokens are about and bound to.
	Objects Objects
}

// Issuer makes service account tokens, and the documents others verify them
// with.
type Issuer struct {
	cfg       IssuerConfig
	generator serviceaccount.TokenGenerator
	metadata  serviceaccount.OpenIDMetadataProvider // nil: no documents
}

// NewIssuer returns an issuer.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if cfg.URL == "" {
		cfg.URL = DefaultIssuer
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{cfg.URL}
	}
	if cfg.Key == nil {
		return nil, errors.New("authn: issuer: no key")
	}
	if cfg.Objects == nil {
		return nil, fmt.Errorf("authn: issuer: %w", errNoObjects)
	}
	generator, err := serviceaccount.JWTTokenGenerator(cfg.URL, cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("authn: issuer: %w", err)
	}
	keys, err := serviceaccount.StaticPublicKeysGetter(append([]any{cfg.Key}, cfg.Keys...))
	if err != nil {
		return nil, fmt.Errorf("authn: issuer: %w", err)
	}
	i := &Issuer{cfg: cfg, generator: generator}
	// Compat: a URL that OpenID does not allow, such as one without https, is
	// good enough for tokens; it only has no documents.
	if metadata, err := serviceaccount.NewOpenIDMetadataProvider(cfg.URL, cfg.JWKSURL, cfg.Address, keys); err == nil {
		i.metadata = metadata
	}
	return i, nil
}

// OpenIDConfig is the document at OpenIDConfigPath, and how many seconds it may
// be kept; its type is application/json. It is nil when the issuer's URL or the
// keys' address is not one that OpenID allows.
func (i *Issuer) OpenIDConfig() (document []byte, maxAge int) {
	if i.metadata == nil {
		return nil, 0
	}
	return i.metadata.GetConfigJSON()
}

// JWKS is the document at JWKSPath, and how many seconds it may be kept; its
// type is application/jwk-set+json. It is nil when OpenIDConfig is.
func (i *Issuer) JWKS() (document []byte, maxAge int) {
	if i.metadata == nil {
		return nil, 0
	}
	return i.metadata.GetKeysetJSON()
}

// tokenRequest is the kind in errors.
var tokenRequest = schema.GroupKind{Group: authenticationv1.GroupName, Kind: "TokenRequest"}

// Issue answers a request for a token of the service account namespace/name.
// The request must have been defaulted, and is not changed; admit, which may
// be nil, is validating admission of the completed request. Errors are API
// errors.
func (i *Issuer) Issue(ctx context.Context, namespace, name string, asked *authenticationv1.TokenRequest, admit func(*authenticationv1.TokenRequest) error) (*authenticationv1.TokenRequest, error) {
	account, err := i.cfg.Objects.GetServiceAccount(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	req := asked.DeepCopy()
	now := time.Now() // before the token's own clock: the answer promises no more than the token keeps
	if err := i.complete(req, account, now); err != nil {
		return nil, err
	}
	if admit != nil {
		if err := admit(req.DeepCopy()); err != nil {
			return nil, err
		}
	}
	bound, err := i.bind(ctx, namespace, name, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	if limit := int64(i.cfg.MaxLife / time.Second); limit > 0 && *req.Spec.ExpirationSeconds > limit {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *req.Spec.ExpirationSeconds, limit))
		req.Spec.ExpirationSeconds = &limit
	}

	// Compat: a pod's token for the API lives a year although an hour is
	// promised. Clients that do not read their token file again are found by
	// the stale-token annotation instead of failing.
	life, warnAfter := *req.Spec.ExpirationSeconds, int64(0)
	if bound.pod != nil && life == serviceaccount.WarnOnlyBoundTokenExpirationSeconds && i.ours(req.Spec.Audiences) {
		warnAfter, life = life, serviceaccount.ExpirationExtensionSeconds
	}
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: account.ObjectMeta},
		bound.pod, bound.secret, bound.node, life, warnAfter, req.Spec.Audiences)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	token, err := i.generator.GenerateToken(ctx, claims, private)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	req.Status = authenticationv1.TokenRequestStatus{
		Token:               token,
		ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(*req.Spec.ExpirationSeconds) * time.Second)),
	}
	return req, nil
}

// complete checks a request against the account it is for, and fills it in.
func (i *Issuer) complete(req *authenticationv1.TokenRequest, account *corev1.ServiceAccount, now time.Time) error {
	at := field.NewPath("metadata")
	switch {
	case req.Name != "" && req.Name != account.Name:
		return apierrors.NewInvalid(tokenRequest, account.Name, field.ErrorList{
			field.Invalid(at.Child("name"), req.Name, "must match the service account name if specified"),
		})
	case req.Namespace != "" && req.Namespace != account.Namespace:
		return apierrors.NewInvalid(tokenRequest, account.Name, field.ErrorList{
			field.Invalid(at.Child("namespace"), req.Namespace, "must match the service account namespace if specified"),
		})
	case req.UID != "" && req.UID != account.UID:
		return apierrors.NewConflict(schema.GroupResource{Group: tokenRequest.Group, Resource: tokenRequest.Kind}, account.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, account.UID))
	}
	req.Name, req.Namespace, req.UID = account.Name, account.Namespace, account.UID
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authenticationv1.TokenRequestStatus{}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(i.cfg.Audiences)
	}
	if req.Spec.ExpirationSeconds == nil {
		hour := int64(60 * 60)
		req.Spec.ExpirationSeconds = &hour
	}
	var internal authentication.TokenRequest
	if err := conversion.Convert_v1_TokenRequest_To_authentication_TokenRequest(req, &internal, nil); err != nil {
		return apierrors.NewInternalError(err)
	}
	if errs := validation.ValidateTokenRequest(&internal); len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequest, "", errs)
	}
	return nil
}

// bound is what a token dies with. Upstream reads names and UIDs of it.
type bound struct {
	pod    *core.Pod
	secret *core.Secret
	node   *core.Node
}

// bind finds the object that a token is to be bound to; ref may be nil.
func (i *Issuer) bind(ctx context.Context, namespace, account string, ref *authenticationv1.BoundObjectReference) (bound, error) {
	var b bound
	if ref == nil {
		return b, nil
	}
	var uid types.UID
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	switch kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		pod, err := i.cfg.Objects.GetPod(ctx, namespace, ref.Name)
		if err != nil {
			return b, err
		}
		if pod.Spec.ServiceAccountName != account {
			return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", account))
		}
		uid, b.pod = pod.UID, &core.Pod{ObjectMeta: pod.ObjectMeta}
		if pod.Spec.NodeName != "" {
			node, err := i.cfg.Objects.GetNode(ctx, pod.Spec.NodeName)
			switch {
			case apierrors.IsNotFound(err):
				b.node = &core.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}} // its name is known all the same
			case err != nil:
				return b, apierrors.NewInternalError(err)
			default:
				b.node = &core.Node{ObjectMeta: node.ObjectMeta}
			}
		}
	case schema.GroupKind{Kind: "Node"}:
		node, err := i.cfg.Objects.GetNode(ctx, ref.Name)
		if err != nil {
			return b, err
		}
		uid, b.node = node.UID, &core.Node{ObjectMeta: node.ObjectMeta}
	case schema.GroupKind{Kind: "Secret"}:
		secret, err := i.cfg.Objects.GetSecret(ctx, namespace, ref.Name)
		if err != nil {
			return b, err
		}
		uid, b.secret = secret.UID, &core.Secret{ObjectMeta: secret.ObjectMeta}
	default:
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind.String()))
	}
	if ref.UID != "" && ref.UID != uid {
		return b, apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return b, nil
}

// ours says whether a token is for this API alone.
func (i *Issuer) ours(audiences []string) bool {
	return !slices.ContainsFunc(audiences, func(a string) bool { return !slices.Contains(i.cfg.Audiences, a) })
}

// SecretToken makes the token that a secret of type
// kubernetes.io/service-account-token holds; it lives as long as the secret.
func SecretToken(ctx context.Context, key crypto.Signer, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return "", fmt.Errorf("authn: secret token: %w", err)
	}
	claims, private := serviceaccount.LegacyClaims(*account, *secret)
	return generator.GenerateToken(ctx, claims, private)
}
