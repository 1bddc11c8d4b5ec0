package controller

import (
	"setpoint.dev/setpoint/controller/autoscaler"
	"setpoint.dev/setpoint/controller/bootstraptoken"
	"setpoint.dev/setpoint/controller/certificate"
	"setpoint.dev/setpoint/controller/clusterrole"
	"setpoint.dev/setpoint/controller/cronjob"
	"setpoint.dev/setpoint/controller/daemonset"
	"setpoint.dev/setpoint/controller/deployment"
	"setpoint.dev/setpoint/controller/disruption"
	"setpoint.dev/setpoint/controller/endpoints"
	"setpoint.dev/setpoint/controller/endpointslice"
	"setpoint.dev/setpoint/controller/endpointslicemirroring"
	"setpoint.dev/setpoint/controller/eviction"
	"setpoint.dev/setpoint/controller/garbage"
	"setpoint.dev/setpoint/controller/ipam"
	"setpoint.dev/setpoint/controller/job"
	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/namespace"
	"setpoint.dev/setpoint/controller/nodelife"
	"setpoint.dev/setpoint/controller/podgc"
	"setpoint.dev/setpoint/controller/protection"
	"setpoint.dev/setpoint/controller/quota"
	"setpoint.dev/setpoint/controller/replicaset"
	"setpoint.dev/setpoint/controller/rootca"
	"setpoint.dev/setpoint/controller/serviceaccount"
	"setpoint.dev/setpoint/controller/statefulset"
	"setpoint.dev/setpoint/controller/storageversion"
	"setpoint.dev/setpoint/controller/token"
	"setpoint.dev/setpoint/controller/ttl"
)

// entry is one controller.
type entry struct {
	// name is what --controllers knows it by; alias is its older name.
	name, alias string
	// account is the service account in kube-system that it acts as, for which
	// upstream's bootstrap policy has a role; "" is who reads for all.
	account string
	// named says that it runs only where its name asks for it. Compat: those are
	// upstream's.
	named bool
	// component is who its events are from; "" is the account.
	component string
	start     func(*loop.Actor, Config) loop.Runner
	// needed says whether there is something for it to do; nil means always.
	needed func(Config) bool
}

// all are the controllers there are, in the order in which they start.
var all = []entry{
	{name: "serviceaccount-controller", alias: "serviceaccount", account: "service-account-controller", start: plain(serviceaccount.New)},
	{name: "root-ca-certificate-publisher-controller", alias: "root-ca-cert-publisher", account: "root-ca-cert-publisher", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return rootca.New(a, cfg.RootCA)
	}},
	{name: "serviceaccount-token-controller", alias: "serviceaccount-token", component: "tokens-controller", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return token.New(a, cfg.RootCA, cfg.Token)
	}},
	{name: "legacy-serviceaccount-token-cleaner-controller", alias: "legacy-service-account-token-cleaner", account: "legacy-service-account-token-cleaner", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return token.NewCleaner(a, cfg.UnusedTokens)
	}},
	{name: "bootstrap-signer-controller", alias: "bootstrapsigner", account: "bootstrap-signer", named: true, start: plain(bootstraptoken.NewSigner)},
	{name: "token-cleaner-controller", alias: "tokencleaner", account: "token-cleaner", named: true, start: plain(bootstraptoken.NewCleaner)},
	{name: "namespace-controller", alias: "namespace", account: "namespace-controller", start: plain(namespace.New)},
	{name: "garbage-collector-controller", alias: "garbagecollector", account: "generic-garbage-collector", component: "garbage-collector-controller", start: plain(garbage.New)},
	{name: "clusterrole-aggregation-controller", alias: "clusterrole-aggregation", account: "clusterrole-aggregation-controller", start: plain(clusterrole.New)},
	{name: "storage-version-migrator-controller", account: "storage-version-migrator-controller", start: plain(storageversion.New)},
	{name: "certificatesigningrequest-approving-controller", alias: "csrapproving", account: "certificate-controller", start: plain(certificate.NewApprover)},
	{name: "certificatesigningrequest-signing-controller", alias: "csrsigning", account: "certificate-controller", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return certificate.NewSigner(a, cfg.Signing)
	}},
	{name: "certificatesigningrequest-cleaner-controller", alias: "csrcleaner", account: "certificate-controller", start: plain(certificate.NewCleaner)},
	{name: "deployment-controller", alias: "deployment", account: "deployment-controller", start: plain(deployment.New)},
	{name: "replicaset-controller", alias: "replicaset", account: "replicaset-controller", start: plain(replicaset.New)},
	{name: "replicationcontroller-controller", alias: "replicationcontroller", account: "replication-controller", start: plain(replicaset.NewReplication)},
	{name: "statefulset-controller", alias: "statefulset", account: "statefulset-controller", start: plain(statefulset.New)},
	{name: "daemonset-controller", alias: "daemonset", account: "daemon-set-controller", component: "daemonset-controller", start: plain(daemonset.New)},
	{name: "job-controller", alias: "job", account: "job-controller", start: plain(job.New)},
	{name: "cronjob-controller", alias: "cronjob", account: "cronjob-controller", start: plain(cronjob.New)},
	{name: "ttl-after-finished-controller", alias: "ttl-after-finished", account: "ttl-after-finished-controller", start: plain(ttl.New)},
	{name: "node-lifecycle-controller", alias: "nodelifecycle", account: "node-controller", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return nodelife.New(a, cfg.Nodes)
	}},
	{name: "node-ipam-controller", alias: "nodeipam", account: "node-controller", component: "cidrAllocator", start: func(a *loop.Actor, cfg Config) loop.Runner {
		return ipam.New(a, cfg.NodeRanges)
	}, needed: func(cfg Config) bool { return cfg.NodeRanges.Allocate }},
	{name: "taint-eviction-controller", account: "node-controller", component: "taint-eviction-controller", start: plain(eviction.New)},
	{name: "pod-garbage-collector-controller", alias: "podgc", account: "pod-garbage-collector", start: plain(podgc.New)},
	{name: "persistentvolumeclaim-protection-controller", alias: "pvc-protection", account: "pvc-protection-controller", start: plain(protection.NewClaims)},
	{name: "persistentvolume-protection-controller", alias: "pv-protection", account: "pv-protection-controller", start: plain(protection.NewVolumes)},
	{name: "volumeattributesclass-protection-controller", account: "volumeattributesclass-protection-controller", start: plain(protection.NewClasses)},
	{name: "endpoints-controller", alias: "endpoint", account: "endpoint-controller", start: plain(endpoints.New)},
	{name: "endpointslice-controller", alias: "endpointslice", account: "endpointslice-controller", component: "endpoint-slice-controller", start: plain(endpointslice.New)},
	{name: "endpointslice-mirroring-controller", alias: "endpointslicemirroring", account: "endpointslicemirroring-controller", component: "endpoint-slice-mirroring-controller", start: plain(endpointslicemirroring.New)},
	{name: "disruption-controller", alias: "disruption", account: "disruption-controller", component: "controllermanager", start: plain(disruption.New)},
	{name: "resourcequota-controller", alias: "resourcequota", account: "resourcequota-controller", start: plain(quota.New)},
	{name: "horizontal-pod-autoscaler-controller", alias: "horizontalpodautoscaling", account: "horizontal-pod-autoscaler", start: plain(autoscaler.New)},
}

// plain is for controllers that need nothing of the Config.
func plain(start func(*loop.Actor) loop.Runner) func(*loop.Actor, Config) loop.Runner {
	return func(a *loop.Actor, _ Config) loop.Runner { return start(a) }
}
