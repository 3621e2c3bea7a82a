//! Starts the threads of the sources, and watches the threads that must not end. A panic ends only its own thread, so
//! without the watch its readings would be missing without an error.

use super::settings::{Gpus, SourceSettings};
use model::id::NodeName;
use model::observation::{Fact, GpuSourceState};
use model::view::NodeView;
use sources::nvml::DriverGate;
use sources::report::Reporter;
use sources::simulated::{SimulatedHolder, SimulatedHolders};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Returns within a second after the thread has ended, with an error if it panicked.
pub(super) async fn await_end(thread: JoinHandle<()>, stop: CancellationToken) -> std::io::Result<()> {
    while !thread.is_finished() {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
    thread.join().map_err(|_| std::io::Error::other("its thread panicked"))
}

/// A thread that must not end, and its name.
pub(super) type Thread = (&'static str, JoinHandle<()>);

/// Starts the threads of the sources, and returns the threads that must not end, so that the agent watches them.
///
/// # Errors
/// The step that failed, and its error.
pub(super) fn open(
    (settings, standalone): (&SourceSettings, bool),
    (name, view, gate): (&NodeName, &watch::Receiver<Arc<NodeView>>, &DriverGate),
    reporter: &Reporter,
    stop: &CancellationToken,
) -> Result<Vec<Thread>, (String, std::io::Error)> {
    let failed = |error: std::io::Error| ("start a thread that reads the host".to_owned(), error);
    let (roots, period, process_period) = (settings.roots.clone(), settings.period, settings.process_period);
    let sampler = sources::sampler::Settings { roots: roots.clone(), period, slow_period: settings.slow_period };
    let sampler = sources::sampler::spawn(sampler, reporter.clone(), stop.clone()).map_err(failed)?;
    let mut threads = vec![("sampler", sampler)];
    match &settings.gpus {
        Gpus::None => {
            reporter.fact(Fact::GpuSource(GpuSourceState::SwitchedOff));
        }
        Gpus::Nvml => {
            let nvml = sources::nvml::Settings {
                library: settings.nvml_library.clone(),
                roots,
                period,
                process_period,
                patience: sources::nvml::DriverPatience::default(),
                kernel_log: settings.kernel_log.clone(),
                gate: gate.clone(),
            };
            let supervisor = sources::nvml::spawn(nvml, reporter.clone(), stop.clone()).map_err(failed)?;
            threads.push(("nvml-supervise", supervisor));
        }
        Gpus::Simulated { model, count } => {
            let holders = (!standalone).then(|| holders(view.clone()));
            let (node, model, count) = (name.clone(), model.clone(), *count);
            let simulated = sources::simulated::Settings { node, holders, model, count, roots, period, process_period };
            let doing = format!("simulate GPUs of model {}", simulated.model);
            let simulated =
                sources::simulated::spawn(simulated, reporter.clone(), stop.clone()).map_err(|error| (doing, error))?;
            threads.push(("gpu-simulated", simulated));
        }
    }
    Ok(threads)
}

/// The containers that hold each GPU in the newest view. The simulated use of a GPU belongs to them.
fn holders(view: watch::Receiver<Arc<NodeView>>) -> SimulatedHolders {
    SimulatedHolders(Box::new(move || {
        let view = Arc::clone(&view.borrow());
        let of_pods = view.pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
        let holds = of_pods.flat_map(|(pod, container)| {
            let claim = container.name.as_ref().and_then(|name| view.plugin.as_ref()?.claim(&pod.uid, name));
            container.holds.iter().map(move |gpu| {
                let share = claim.and_then(|claim| claim.device_shares.iter().find(|share| share.device == *gpu));
                let memory = share.and_then(|share| share.memory).filter(|memory| memory.0 > 0);
                SimulatedHolder { container: container.id.clone(), gpu: gpu.clone(), memory }
            })
        });
        holds.collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::super::{DriverRelease, Live, PortAccess, Reload, reload};
    use super::*;
    use crate::settings::LiveSettings;
    use effects::http::MetricSets;
    use serve::caller::AllowedHosts;
    use serve::exit::Exit;
    use serve::lifecycle::{EndedTask, Lifecycle, runtime};
    use serve::log::level::Verbosity;
    use serve::log::{self, LogFormat};
    use sources::roots::HostRoots;
    use tokio::sync::mpsc;

    #[test]
    fn every_source_thread_is_watched() {
        for (gpus, expect) in [
            (Gpus::None, &["sampler"][..]),
            (Gpus::Nvml, &["sampler", "nvml-supervise"]),
            (Gpus::Simulated { model: "H100".to_owned(), count: 1 }, &["sampler", "gpu-simulated"]),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let library = Some(directory.path().join("libnvidia-ml.so.1"));
            let period = Duration::from_secs(1);
            let settings = SourceSettings {
                gpus: gpus.clone(),
                nvml_library: library,
                kernel_log: None,
                roots: HostRoots { procfs: "/proc".into(), cgroup: "/sys/fs/cgroup".into(), sysfs: "/sys".into() },
                period,
                slow_period: period,
                process_period: period,
            };
            let name = NodeName::parse("n1").unwrap();
            let (_view, seen) = watch::channel(Arc::new(NodeView::empty(name.clone(), clock::now())));
            let (stop, (reporter, _observations)) = (CancellationToken::new(), Reporter::channel());
            let threads = open((&settings, false), (&name, &seen, &DriverGate::default()), &reporter, &stop).unwrap();
            let named: Vec<&str> = threads.iter().filter_map(|(_, thread)| thread.thread().name()).collect();
            let watched: Vec<&str> = threads.iter().map(|(name, _)| *name).collect();
            assert_eq!((&watched[..], &named[..]), (expect, expect), "{gpus:?}");
            stop.cancel();
        }
    }

    #[test]
    fn a_thread_that_panics_ends_the_agent_and_its_name_is_logged() {
        let telemetry = log::start(LogFormat::Text, Verbosity(0));
        let sets = MetricSets { dcgm: true, dcgm_renamed: false, hami: false, cadvisor: false };
        let live = LiveSettings { verbosity: Verbosity(0), sets, api_token_file: None };
        let access = PortAccess { hosts: AllowedHosts::new(["n1"]), certificates: None };
        let http = watch::channel(reload::http_settings(&live, access.clone()).unwrap()).0;
        let reload = Reload::new(Box::new(|_| {}), live, access, http);
        let mut mode = Live {
            reload,
            level: Arc::clone(&telemetry.level),
            certificates: Vec::new(),
            replaced: Arc::default(),
            driver: DriverRelease::default(),
            departure: None,
        };
        let mut lifecycle = Lifecycle::new("agent");
        let exit = runtime(2, 1).unwrap().block_on(async {
            let panics = || std::thread::spawn(|| panic!("on purpose"));
            let stop = lifecycle.stop();
            lifecycle.must_not_end("nvml-supervise", await_end(panics(), stop.clone()));
            let ended = lifecycle.ended().await;
            let (task, why) = ("nvml-supervise", "its thread panicked".to_owned());
            assert_eq!(ended, Some(EndedTask { task, why, exit: Exit::Failure }));
            lifecycle.must_not_end("nvml-supervise", await_end(panics(), stop));
            let (_requests, seen) = mpsc::channel(1);
            lifecycle.run(seen, &mut mode, &telemetry.level, Duration::from_secs(10)).await
        });
        assert_eq!(exit, Exit::Failure);
    }

    #[test]
    fn a_thread_that_ends_because_the_agent_stops_is_no_failure() {
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            while !ended.is_cancelled() {
                std::thread::yield_now();
            }
        });
        stop.cancel();
        assert!(runtime(2, 1).unwrap().block_on(await_end(thread, stop)).is_ok());
    }
}
