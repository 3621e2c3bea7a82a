//! The real wrapper with the fake library: every value of a scenario comes back.

mod bench;
mod identity;
mod fault;
mod reading;
mod process;
mod mig;
mod event;
mod replay;
mod recordings;
