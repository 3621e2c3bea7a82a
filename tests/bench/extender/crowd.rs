//! A leader with 5,000 nodes, 50,000 claims and 5,000 streams of agents: its memory, its CPU time, and the age of the data
//! on which it decides.

use crate::agents::{Agents, PlannedAgent};
use crate::cluster::{PODS_A_NODE, agent_token, asking_pod, cluster, node_name, put_agents, uid};
use crate::outcome::{Figures, Outcome, many, median};
use crate::served::{Connection, SOON, Served};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nodes, each with an agent.
pub(crate) const NODES: usize = 5000;
/// Time until the allocator has returned the memory of the start or the handshakes.
pub(crate) const SETTLES: Duration = Duration::from_secs(20);
/// The length of each measurement.
const MEASURED: Duration = Duration::from_secs(60);
/// The number of changes whose age is measured.
const CHANGES: usize = 21;

/// The marks: MiB, percent of a core, seconds.
const MOST_ALL: f64 = 300.0;
const MOST_LEDGER: f64 = 150.0;
const MOST_IDLE: f64 = 5.0;
const MOST_CHANGING: f64 = 20.0;
/// The rest of the promised 1.2 s is the agent's second between two messages.
const OLDEST: f64 = 0.2;

/// The leader with its agents.
pub(crate) struct Crowd {
    pub(crate) server: FakeApiServer,
    pub(crate) leader: Served,
    pub(crate) agents: Agents,
    /// The leader's memory before a stream was open.
    ledger: [f64; 2],
}

impl Crowd {
    /// Starts the leader with these flags, and opens a stream for each node.
    pub(crate) fn gather(flags: &[&str]) -> Outcome<Crowd> {
        let server = cluster(NODES, 1);
        put_agents(&server, NODES);
        let leader = Served::with_streams(&server, flags)?;
        leader.wait_until_leads();
        let trusted = eventually("the certificates of the extenders", SOON, || {
            let stored = server.object("configmaps", "gpu", "gpu-steward-extender-ca")?;
            stored["data"]["ca.crt"].as_str().map(str::to_owned)
        });
        let planned = (0..NODES).map(|number| PlannedAgent {
            number,
            place: many(number) / many(NODES),
            node: node_name(number),
            token: agent_token(&server, number),
            pods: (0..PODS_A_NODE).map(|place| uid(number * PODS_A_NODE + place)).collect(),
        });
        let mut agents = Agents::start(trusted, planned.collect())?;
        std::thread::sleep(SETTLES);
        let ledger = memory(&leader)?;
        agents.tell(&format!("service {}", leader.started_with("reports")))?;
        agents.tell("mark")?;
        let before = leader.cpu()?;
        agents.tell("open")?;
        let counts = all_up(&mut agents)?;
        let each = (leader.cpu()? - before).as_secs_f64() * 1e6 / many(NODES);
        println!(
            "{NODES} streams opened in {:.1} s with {} tries; {each:.0} us of the leader's CPU for each",
            counts["last_up_ms"].as_f64().unwrap_or(f64::NAN) / 1000.0,
            counts["tries"]
        );
        Ok(Crowd { server, leader, agents, ledger })
    }

    /// Measures memory, CPU and age.
    pub(crate) fn measure(&mut self, figures: &mut Figures) -> Outcome<()> {
        std::thread::sleep(SETTLES);
        let [rss, anon] = memory(&self.leader)?;
        let [rss_before, anon_before] = self.ledger;
        let claims = NODES * PODS_A_NODE;
        println!(
            "{NODES} nodes, {claims} claims: VmRSS {rss_before:.0} MiB, RssAnon {anon_before:.0} MiB; with {NODES} streams {rss:.0} \
             and {anon:.0} MiB: {:.1} KiB a stream",
            (anon - anon_before) * 1024.0 / many(NODES)
        );
        figures.at_most("memory of ledger and watches (RssAnon), MiB", anon_before, MOST_LEDGER);
        figures.at_most("memory in all with 5,000 streams (VmRSS), MiB", rss, MOST_ALL);
        let (idle, beats) = self.load()?;
        println!("idle: {idle:.2} % of a core with {beats:.0} messages a second");
        figures.at_most("idle leader with 5,000 streams, % of a core", idle, MOST_IDLE);
        self.agents.tell("changing on")?;
        std::thread::sleep(Duration::from_secs(6));
        let (changing, messages) = self.load()?;
        println!(
            "a fifth of the nodes changes each second: {changing:.2} % of a core with {messages:.0} messages a second"
        );
        figures.at_most("leader while 1,000 nodes change each second, % of a core", changing, MOST_CHANGING);
        let mut ages = (0..CHANGES).map(|turn| self.age(turn)).collect::<Outcome<Vec<f64>>>()?;
        ages.sort_by(f64::total_cmp);
        let oldest = ages.last().copied().unwrap_or(f64::NAN);
        println!("a filter call sees a change {:.3} s after it was sent (median), {oldest:.3} s at most", median(ages));
        figures.at_most("a filter call sees a change of a node, s after it was sent", oldest, OLDEST);
        self.agents.tell("changing off")?;
        let [rss, _] = memory(&self.leader)?;
        figures.at_most("memory in all afterwards (VmRSS), MiB", rss, MOST_ALL);
        let up = self.agents.count("up")?;
        figures.check(format!("streams that are open at the end: {up} of {NODES}"), up == NODES);
        Ok(())
    }

    /// The CPU share, and the messages per second.
    fn load(&self) -> Outcome<(f64, f64)> {
        let messages = || self.leader.metric("gpu_steward_extender_stream_messages_total");
        let (begun, before) = (Instant::now(), messages()?);
        let share = self.leader.cpu_share(MEASURED)?;
        let passed = usize::try_from(messages()? - before)?;
        Ok((share, many(passed) / begun.elapsed().as_secs_f64()))
    }

    /// Closes or opens the first node by its agent. Returns the seconds until a filter call saw the change.
    fn age(&mut self, turn: usize) -> Outcome<f64> {
        let closed = turn.is_multiple_of(2);
        let question = json!({ "Pod": asking_pod(turn, 1000), "Nodes": null, "NodeNames": [node_name(0)] });
        let body = question.to_string().into_bytes();
        let mut connection = Connection::open(self.leader.address)?;
        let mut fits =
            || Ok::<_, Box<dyn std::error::Error>>(connection.ask("filter", &body)?.json()["NodeNames"].is_array());
        if fits()? != closed {
            return Err("the node is not as it was left".into());
        }
        self.agents.tell(if closed { "closed on" } else { "closed off" })?;
        let begun = Instant::now();
        while fits()? == closed {
            if begun.elapsed() > Duration::from_secs(10) {
                return Err("a change of a node is not seen".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let seen = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let sent = self.agents.tell("report")?["sent"].as_f64().ok_or("nothing was sent")? / 1e6;
        Ok(seen - sent)
    }
}

/// VmRSS and RssAnon, in MiB.
pub(crate) fn memory(extender: &Served) -> Outcome<[f64; 2]> {
    let mib =
        |field: &str| Ok::<_, Box<dyn std::error::Error>>(many(usize::try_from(extender.memory_kib(field)?)?) / 1024.0);
    Ok([mib("VmRSS")?, mib("RssAnon")?])
}

/// Waits until each agent has opened a stream since the mark, and still has it. Returns the counts.
pub(crate) fn all_up(agents: &mut Agents) -> Outcome<Value> {
    let begun = Instant::now();
    loop {
        let counts = agents.tell("report")?;
        if counts["up"] == NODES && counts["ups"].as_u64() >= Some(NODES as u64) {
            return Ok(counts);
        }
        if begun.elapsed() > SOON {
            return Err(format!("not all agents have a stream: {counts}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
