package rest

import (
	"cmp"
	"crypto/tls"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
)

// componentStatus answers how the parts of a control plane are.
//
// Compat: they have upstream's names, and controller-manager and scheduler are
// looked for where upstream looks, on this machine at their usual ports: stock
// ones may run there. The store is etcd-0.
func (c *call) componentStatus() error {
	all := &componentstatus.REST{GetServersToValidate: c.components}
	if c.info.Verb == "get" {
		obj, err := all.Get(c.ctx, c.info.Name, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		body, err := c.encodeObject(obj)
		if err != nil {
			return err
		}
		c.writeBody(http.StatusOK, body)
		return nil
	}
	q, err := c.listOptions()
	if err != nil {
		return err
	}
	obj, err := all.List(c.ctx, &q.ListOptions)
	if err != nil {
		return err
	}
	if list, is := obj.(*core.ComponentStatusList); is {
		slices.SortFunc(list.Items, func(a, b core.ComponentStatus) int { return cmp.Compare(a.Name, b.Name) })
	}
	return c.respondInternalList(obj, metav1.ListMeta{})
}

// Where stock components answer for their health.
const (
	controllerManagerPort = 10257
	schedulerPort         = 10259
)

func (c *call) components() map[string]componentstatus.Server {
	beside := func(port int) componentstatus.Server {
		return &componentstatus.HttpServer{
			Addr: "127.0.0.1", Port: port, Path: "/healthz", EnableHTTPS: true,
			TLSConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent; upstream's components make their own certificates
		}
	}
	return map[string]componentstatus.Server{
		"controller-manager": beside(controllerManagerPort), "scheduler": beside(schedulerPort), "etcd-0": storeHealth{c},
	}
}

// storeHealth says whether the store can be read.
type storeHealth struct{ call *call }

// DoServerCheck implements componentstatus.Server.
func (s storeHealth) DoServerCheck() (probe.Result, string, error) {
	sn, err := s.call.snapshot()
	if err == nil {
		_, err = sn.Get(s.call.ctx, sealTable, sealKey)
	}
	if err != nil {
		return probe.Failure, "", err
	}
	return probe.Success, "ok", nil
}
