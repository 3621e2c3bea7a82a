//! The real wrapper against the fake library: every value comes back.

mod bench;
mod identity;
mod fault;
mod reading;
mod process;
mod mig;
mod event;
mod replay;
mod recordings;
