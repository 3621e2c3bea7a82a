//! The data types of the agent: a node, its GPUs and its pods, in units that cannot be mixed up.
//!
//! ```text
//!   time backoff unit id        moments, amounts, names and identities
//!   histogram           how long calls took, and how large amounts of memory were
//!   reading             a value that was measured at a time, or the reason why there is none
//!   reported_reading    a reading in an agent's report, with its age
//!   sample_value        the number of a value in base units, for metrics and JSON
//!   recovery            what NVML advises to do with a GPU that does not work
//!   reading_name        what a server needs to show a reading: its names, and its value whatever its unit is
//!   physical_range      what each number of a GPU can be at most; a number outside its range is no reading
//!   hardware            what is read rarely: a GPU's board and limits, PCIe slot, retired pages, links, fabric
//!   switch              NVSwitches, known from the kernel log only
//!   gpu cgroup pod process host   one thing each: its identity and its raw values, as the source gives them
//!   pod_memory          how much memory a pod takes, and how much all pods may take
//!   followed_node       what a scheduler needs of a Node
//!   infiniband          the machine's ports, and which GPUs are near them
//!   usage               rates, derived from two raw samples
//!   xid                 NVIDIA's catalogue of driver errors: what to do about each, and which make a GPU unfit
//!   incident            what makes a GPU unfit for new containers, and what to do about it
//!   nvidia              the names of NVIDIA's resources, keys, devices and files
//!   slot gpu_id         the numbered device ids that the kubelet counts and allocates; the device ids of other plugins
//!   request registered  what a container requests, and how a percentage of memory is rounded; what a node offers
//!   claim gpu_pod       the device shares of one pod, who wrote them, the order to bind it; a pod that requests GPUs
//!   other_vendors       devices of other vendors, whose use is not read
//!   realtime            whether a pod is checked against the memory that is really free
//!   placement           which GPUs a pod accepts and prefers
//!   file_stamp          one state of one file
//!   checkpoint ticket   a row of the kubelet's checkpoint; a CDI device name that stands for one container
//!   cdi_support         what is known about the CDI support of the container runtime
//!   limits              what limits a container, and the memory that each pod may hold of a device
//!   lease               the record by which one process becomes the leader
//!   agent_stream        what an agent reports to the leading extender, and what the leader answers
//!   authority           the certificate authority of the extenders
//!   tally               GPU time and energy of pods since the agent started
//!   guard               the chart's admission policies, as this agent found them
//!   withheld            why a device that the driver lists is not offered to pods
//!   plugin              the device plugin: its registration with the kubelet, its calls and their outcomes
//!   driver_hold         whether the agent holds the GPU driver open
//!   observation         everything that a source (crate `sources`) can report
//!   utilization         NVML's own samples of a GPU's utilisation
//!   stored_history quantised  the steps of a history that are kept on disk; values as 16-bit numbers
//!   workload_profile    whether the load of a GPU or pod repeats, where it goes, what it will need; a question about its history
//!   node_profile        what the annotations of a Node say about the load of its GPUs
//!   view                what the agent knows of the node at one moment; every server shows it
//! ```
//!
//! What must never happen here: use of a file, clock, socket, async or serialisation format. Time is an argument.
//! A value that could not be read is [`Reading::Absent`] with its reason, never zero.

// A pure crate never panics on an input: an impossible case is an error value or excluded by a type.
#![deny(clippy::expect_used)]

pub mod time;
pub mod backoff;
pub mod histogram;
pub mod unit;
pub mod id;
pub mod reading;
pub mod recovery;
pub mod sample_value;
pub mod physical_range;
pub mod reading_name;
pub mod hardware;
pub mod switch;
pub mod gpu;
pub mod cgroup;
pub mod pod;
pub mod pod_memory;
pub mod followed_node;
pub mod assumed;
pub mod process;
pub mod host;
pub mod infiniband;
pub mod usage;
pub mod xid;
pub mod incident;
pub mod slot;
pub mod gpu_id;
pub mod nvidia;
pub mod request;
pub mod registered;
pub mod claim;
pub mod gpu_pod;
pub mod realtime;
pub mod other_vendors;
pub mod placement;
pub mod lease;
pub mod reported_reading;
pub mod agent_stream;
pub mod authority;
pub mod file_stamp;
pub mod checkpoint;
pub mod ticket;
pub mod cdi_support;
pub mod limits;
pub mod tally;
pub mod guard;
pub mod withheld;
pub mod plugin;
pub mod driver_hold;
pub mod observation;
pub mod workload_profile;
pub mod utilization;
pub mod quantised;
pub mod stored_history;
pub mod node_profile;
pub mod view;

pub use reading::{Absence, Reading};
