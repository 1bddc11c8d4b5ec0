// Package extension puts an API server made with k8s.io/apiserver behind a
// control plane: what extension servers are made of in practice. It is a module
// of its own because that library brings along what the product does without.
package extension
