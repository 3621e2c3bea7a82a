//! Reads the settings of the streams between agents and extenders.

use super::layer::Problem;
use super::reader::Reader;
use super::value;
use agent::settings::ReportSettings;
use extender::settings::StreamSettings;
use model::realtime::NodeCheck;

impl Reader<'_> {
    /// How the agent reports to the extenders, if it does. Address, CA certificates and token must be given together.
    pub(super) fn report(&mut self) -> Option<Option<ReportSettings>> {
        let address = self.take("extender-address", |text| value::unless_none(text, value::host_port));
        let ca_file = self.take("extender-ca-file", |text| value::unless_none(text, value::path));
        let token_file = self.take("stream-token-file", |text| value::unless_none(text, value::path));
        let enabled = self.take_set("enable-realtime-check", value::switch);
        let mode = self.take_set("realtime-check-mode", value::check_mode);
        let check = NodeCheck { enabled: enabled?, mode: mode? };
        match (address?, ca_file?, token_file?) {
            (Some(address), Some(ca_file), Some(token_file)) => {
                Some(Some(ReportSettings { address, ca_file, token_file, check }))
            }
            (None, _, _) => Some(None),
            (Some(_), _, _) => {
                let why = "extender-address needs extender-ca-file and stream-token-file: the agent verifies the \
                           extender, and authenticates itself to it";
                self.problems.push(Problem::Together(why.into()));
                None
            }
        }
    }

    /// How the extender serves agents, if it does.
    pub(super) fn streams(&mut self) -> Option<Option<StreamSettings>> {
        let listen = self.take("stream-listen", |text| value::unless_none(text, value::address));
        let address = self.take("stream-address", |text| value::unless_auto(text, value::host_port));
        let accounts = self.take("stream-accounts", |text| value::unless_none(text, value::accounts));
        let audience = self.take("stream-audience", value::audience);
        let token_file = self.take("stream-token-file", |text| value::unless_none(text, value::path));
        let (listen, address, accounts) = (listen?, address?, accounts?.unwrap_or_default());
        let (audience, token_file) = (audience?, token_file?);
        Some(listen.map(|listen| StreamSettings { listen, address, accounts, audience, token_file }))
    }
}
