// Package profile reads how pods are to be placed from upstream's configuration
// of schedulers.
//
// In comes a KubeSchedulerConfiguration; out come profiles. What always holds:
// what is asked for and cannot be done is an error, never left out in silence.
// What concerns upstream's process alone, such as its leader election, its
// client and its threads, changes nothing.
package profile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/scheduler/cycle"
	"setpoint.dev/setpoint/scheduler/filter"
	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/score"
)

// preemption is the plugin that has less important pods go.
const preemption = "DefaultPreemption"

// always are plugins that are there whoever asks.
var always = []string{"SchedulingGates", "PrioritySort", "DefaultBinder"}

// Read reads profiles.
func Read(data []byte) ([]*place.Profile, error) {
	var cfg configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
		return nil, err
	}
	if kind := configv1.SchemeGroupVersion.WithKind("KubeSchedulerConfiguration"); cfg.GroupVersionKind() != kind {
		return nil, fmt.Errorf("it is a %s, not a %s", cfg.GroupVersionKind(), kind)
	}
	switch {
	case len(cfg.Extenders) > 0:
		return nil, errors.New("extenders: they are not asked here")
	case cfg.PodInitialBackoffSeconds != nil && *cfg.PodInitialBackoffSeconds != 1, cfg.PodMaxBackoffSeconds != nil && *cfg.PodMaxBackoffSeconds != 10:
		return nil, errors.New("podInitialBackoffSeconds, podMaxBackoffSeconds: they are 1 and 10 here")
	case len(cfg.Profiles) == 0:
		cfg.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	var all []*place.Profile
	for i := range cfg.Profiles {
		p, err := read(&cfg.Profiles[i], cfg.PercentageOfNodesToScore)
		if err != nil {
			return nil, fmt.Errorf("profiles[%d]: %w", i, err)
		}
		if slices.ContainsFunc(all, func(other *place.Profile) bool { return other.Name == p.Name }) {
			return nil, fmt.Errorf("profiles[%d]: there are two of the name %q", i, p.Name)
		}
		all = append(all, p)
	}
	return all, nil
}

// read reads one profile.
func read(from *configv1.KubeSchedulerProfile, percentage *int32) (*place.Profile, error) {
	name := corev1.DefaultSchedulerName
	if from.SchedulerName != nil {
		name = *from.SchedulerName
	}
	settings := cycle.Settings{NearWeight: cycle.DefaultNearWeight}
	for i := range from.PluginConfig {
		if err := readArgs(&settings, &from.PluginConfig[i]); err != nil {
			return nil, fmt.Errorf("pluginConfig of %s: %w", from.PluginConfig[i].Name, err)
		}
	}
	plugins := from.Plugins
	if plugins == nil {
		plugins = &configv1.Plugins{}
	}
	if err := check(plugins); err != nil {
		return nil, err
	}
	filters := slices.DeleteFunc(filter.All(), func(f filter.Filter) bool { return off(f.Name, &plugins.MultiPoint, &plugins.Filter) })
	scores := slices.DeleteFunc(score.All(), func(s score.Score) bool { return off(s.Name, &plugins.MultiPoint, &plugins.Score) })
	for i := range scores {
		for _, set := range []*configv1.PluginSet{&plugins.MultiPoint, &plugins.Score} {
			for _, p := range set.Enabled {
				if p.Name == scores[i].Name && p.Weight != nil && *p.Weight > 0 {
					scores[i].Weight = int64(*p.Weight)
				}
			}
		}
	}
	p := place.New(name, settings, filters, scores)
	p.NoPreemption = off(preemption, &plugins.MultiPoint, &plugins.PostFilter)
	if from.PercentageOfNodesToScore != nil {
		percentage = from.PercentageOfNodesToScore
	}
	if percentage != nil {
		p.Percentage = int(*percentage)
	}
	return p, nil
}

// off says whether a plugin is switched off: for everything or where it is used,
// and not on again there.
func off(name string, sets ...*configv1.PluginSet) bool {
	is := false
	for _, set := range sets {
		has := func(p configv1.Plugin) bool { return p.Name == name }
		is = is || slices.ContainsFunc(set.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
		is = is && !slices.ContainsFunc(set.Enabled, has)
	}
	return is
}

// check finds what plugins are asked for that are not there.
func check(plugins *configv1.Plugins) error {
	known := append(slices.Clone(always), preemption)
	for _, f := range filter.All() {
		known = append(known, f.Name)
	}
	for _, s := range score.All() {
		known = append(known, s.Name)
	}
	for point, set := range map[string]*configv1.PluginSet{
		"multiPoint": &plugins.MultiPoint, "filter": &plugins.Filter, "score": &plugins.Score, "postFilter": &plugins.PostFilter,
	} {
		for _, p := range append(slices.Clone(set.Enabled), set.Disabled...) {
			if p.Name != "*" && !slices.Contains(known, p.Name) {
				return fmt.Errorf("plugins.%s: there is no %s here", point, p.Name)
			}
		}
	}
	for point, set := range map[string]*configv1.PluginSet{
		"preEnqueue": &plugins.PreEnqueue, "queueSort": &plugins.QueueSort, "preFilter": &plugins.PreFilter, "preScore": &plugins.PreScore,
		"reserve": &plugins.Reserve, "permit": &plugins.Permit, "preBind": &plugins.PreBind, "bind": &plugins.Bind, "postBind": &plugins.PostBind,
	} {
		if len(set.Enabled)+len(set.Disabled) > 0 {
			return fmt.Errorf("plugins.%s: plugins are switched by multiPoint, filter, score and postFilter here", point)
		}
	}
	return nil
}

// readArgs reads the arguments of a plugin.
func readArgs(to *cycle.Settings, from *configv1.PluginConfig) error {
	switch from.Name {
	case "NodeAffinity":
		return readAffinity(to, from.Args.Raw)
	case "PodTopologySpread":
		var args configv1.PodTopologySpreadArgs
		if err := yaml.UnmarshalStrict(from.Args.Raw, &args); err != nil {
			return err
		}
		if args.DefaultingType != configv1.SystemDefaulting && (args.DefaultingType == configv1.ListDefaulting || len(args.DefaultConstraints) > 0) {
			to.OwnSpread, to.Spread = true, args.DefaultConstraints
		}
		return nil
	case "InterPodAffinity":
		var args configv1.InterPodAffinityArgs
		if err := yaml.UnmarshalStrict(from.Args.Raw, &args); err != nil {
			return err
		}
		if args.IgnorePreferredTermsOfExistingPods {
			return errors.New("ignorePreferredTermsOfExistingPods: they are not ignored here")
		}
		if args.HardPodAffinityWeight != nil {
			to.NearWeight = int64(*args.HardPodAffinityWeight)
		}
		return nil
	default:
		return unchanged(from.Args.Raw)
	}
}

func readAffinity(to *cycle.Settings, raw []byte) (err error) {
	var args configv1.NodeAffinityArgs
	if err := yaml.UnmarshalStrict(raw, &args); err != nil || args.AddedAffinity == nil {
		return err
	}
	if required := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		if to.Required, err = nodeaffinity.NewNodeSelector(required); err != nil {
			return err
		}
	}
	if preferred := args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		to.Preferred, err = nodeaffinity.NewPreferredSchedulingTerms(preferred)
	}
	return err
}

// unchanged says that arguments say something, for plugins that have none here.
func unchanged(raw []byte) error {
	var args map[string]any
	if err := yaml.Unmarshal(bytes.TrimSpace(raw), &args); err != nil {
		return err
	}
	delete(args, "apiVersion")
	delete(args, "kind")
	if len(args) > 0 {
		return errors.New("its arguments are upstream's defaults here")
	}
	return nil
}
