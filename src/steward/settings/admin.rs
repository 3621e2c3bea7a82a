//! Reads the settings of the admin port, which the agent and the extender have in common.

use super::layer::Problem;
use super::reader::Reader;
use super::value;
use serve::admin_access::AdminSettings;
use serve::server::certificate::Tls;

impl Reader<'_> {
    /// The admin port; `listen` is the key of its address.
    pub(super) fn admin(&mut self, listen: &'static str) -> Option<AdminSettings> {
        let address = self.take(listen, |text| value::unless_none(text, value::address));
        let tls = self.admin_tls();
        let token_file = self.take("admin-token-file", |text| value::unless_none(text, value::path));
        let profiling = self.take("profiling", value::switch);
        let settings = AdminSettings { listen: address?, tls: tls?, token_file: token_file?, profiling: profiling? };
        self.admin_is_guarded(listen, &settings);
        Some(settings)
    }

    fn admin_tls(&mut self) -> Option<Option<Tls>> {
        let pair = self.certificate_pair("admin-tls-cert", "admin-tls-key");
        let client_ca = self.take("admin-client-ca", |text| value::unless_none(text, value::path));
        match (pair?, client_ca?) {
            (Some(pair), client_ca) => Some(Some(Tls { client_ca, ..pair })),
            (None, None) => Some(None),
            (None, Some(_)) => {
                let why = "admin-client-ca asks callers of the admin port for certificates, which needs HTTPS: give admin-tls-cert and admin-tls-key as well";
                self.problems.push(Problem::Together(why.into()));
                None
            }
        }
    }

    /// A caller of the admin port can read the program's memory profile and its log level. If other machines can reach
    /// the port, it must use HTTPS and identify its callers.
    fn admin_is_guarded(&mut self, listen: &'static str, settings: &AdminSettings) {
        let Some(address) = settings.listen.filter(|address| !address.ip().to_canonical().is_loopback()) else {
            return;
        };
        if settings.tls.is_none() || !settings.identifies_callers() {
            self.problems.push(Problem::Together(format!(
                "{listen} {address} can be reached from other machines: give admin-tls-cert and admin-tls-key, and \
                 admin-client-ca (callers show a certificate) or admin-token-file (callers send a token); or listen on 127.0.0.1"
            )));
        }
    }
}
