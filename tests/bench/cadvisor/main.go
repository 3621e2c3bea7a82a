// Runs cAdvisor's manager and Prometheus collector behind one HTTP port, for comparison in the footprint bench. It samples
// every container once a second. cAdvisor's own command is in a module that the module proxy does not have, so this
// program runs the library in the same way.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/google/cadvisor/cache/memory"
	"github.com/google/cadvisor/container"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/manager"
	"github.com/google/cadvisor/metrics"
	"github.com/google/cadvisor/utils/sysfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of /metrics")
	// A flag of the library; without it an idle container would be sampled less often.
	flag.Parse()
	if err := flag.Set("housekeeping_interval", "1s"); err != nil {
		log.Fatal(err)
	}

	// The metrics that cAdvisor's command collects by default.
	included := container.AllMetrics.Difference(container.MetricSet{
		container.MemoryNumaMetrics: {}, container.NetworkTcpUsageMetrics: {}, container.NetworkUdpUsageMetrics: {},
		container.NetworkAdvancedTcpUsageMetrics: {}, container.ProcessSchedulerMetrics: {}, container.ProcessMetrics: {},
		container.HugetlbUsageMetrics: {}, container.ReferencedMemoryMetrics: {}, container.CPUTopologyMetrics: {},
		container.ResctrlMetrics: {}, container.CPUSetMetrics: {},
	})
	longest, dynamic := time.Second, false
	housekeeping := manager.HousekeepingConfig{Interval: &longest, AllowDynamic: &dynamic}
	// Two minutes of samples are cAdvisor's default.
	cache := memory.New(2*time.Minute, nil)
	m, err := manager.New(cache, sysfs.NewRealSysFs(), housekeeping, included, http.DefaultClient,
		[]string{"/kubepods"}, nil, "", 0)
	if err != nil {
		log.Fatalf("manager: %v", err)
	}
	if err := m.Start(); err != nil {
		log.Fatalf("start: %v", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewPrometheusCollector(m, nil, included, clock.RealClock{}, v2.RequestOptions{
		IdType: v2.TypeName, Count: 1, Recursive: true,
	}))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	log.Fatal(http.ListenAndServe(*listen, nil))
}
