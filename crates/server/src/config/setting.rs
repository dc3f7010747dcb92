//! A setting: its names, its default, and how its values are shown.

/// A setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Name, and path in the file: `api.listen` is `listen` in the map `api`.
    pub(crate) name: &'static str,
    /// Description, in one or a few sentences.
    pub(crate) about: &'static str,
    /// Default values; empty if there is no default.
    pub(crate) default: &'static [&'static str],
    /// Example value, for settings without a default.
    pub(crate) example: &'static str,
    pub(crate) kind: SettingKind,
    /// Whether it is shown in the short help.
    pub(crate) is_common: bool,
    /// Whether a change needs a restart.
    pub(crate) needs_restart: bool,
    /// Flag without the leading dashes, such as `api-listen`.
    pub(crate) flag: String,
    /// Environment variable, such as `TIDEGATE_API_LISTEN`.
    pub(crate) variable: String,
    /// Alternative flags, without the leading dashes.
    pub(crate) aliases: Vec<String>,
    /// Former name, which is accepted with a note.
    pub(crate) former: Option<&'static str>,
}

/// Kind of value, as far as it matters before parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingKind {
    One,
    /// A list in the file; comma-separated in flags and variables.
    Many,
    /// A secret, which is never shown.
    Secret,
    /// URLs. User and password are never shown.
    Urls,
    /// Names with passwords after a colon. Passwords are never shown.
    Logins,
}

impl Setting {
    pub(super) const fn new(name: &'static str, default: &'static [&'static str], about: &'static str) -> Setting {
        Setting {
            name,
            about,
            default,
            example: "",
            kind: SettingKind::One,
            is_common: false,
            needs_restart: false,
            flag: String::new(),
            variable: String::new(),
            aliases: Vec::new(),
            former: None,
        }
    }

    pub(super) fn common(self) -> Setting {
        Setting { is_common: true, ..self }
    }

    pub(super) fn of(self, kind: SettingKind) -> Setting {
        Setting { kind, ..self }
    }

    pub(super) fn at_start(self) -> Setting {
        Setting { needs_restart: true, ..self }
    }

    pub(super) fn such_as(self, example: &'static str) -> Setting {
        Setting { example, ..self }
    }

    /// Shortens the flag. The variable for the short flag is accepted besides the regular one.
    pub(super) fn called(self, flag: &str) -> Setting {
        Setting { flag: flag.to_owned(), ..self }
    }

    /// Also accepts a former name in the same section, with a note.
    pub(super) fn formerly(self, name: &'static str) -> Setting {
        Setting { former: Some(name), ..self }
    }

    /// Section; empty at the top level.
    pub(crate) fn section(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Derives the flag and the variable from the name. A setting with a shorter flag keeps the regular one as an alias.
    pub(super) fn spelled(mut self) -> Setting {
        let regular = flag_of(self.name);
        let flag = if self.flag.is_empty() { regular.clone() } else { self.flag.clone() };
        if flag != regular {
            self.aliases.push(regular.clone());
        }
        self.aliases.extend(self.former.map(flag_of));
        let variable = variable_of(&regular);
        let is_of_store = self.name.starts_with("store.") && self.name != "store.required";
        let needs_restart = self.name.ends_with(".listen")
            || self.name == "handover"
            || self.name.starts_with("traces.")
            || is_of_store
            || self.needs_restart;
        Setting { flag, variable, needs_restart, ..self }
    }

    /// Adds an alias of the flag, and of the variable.
    pub(super) fn also_called(mut self, flag: &str) -> Setting {
        self.aliases.push(flag.to_owned());
        self
    }

    /// Whether an environment variable sets it.
    pub(crate) fn is_set_by(&self, variable: &str) -> bool {
        self.variables().any(|known| known == variable)
    }

    /// Whether an environment variable sets it under its former name.
    pub(crate) fn was_set_by(&self, variable: &str) -> bool {
        self.former.is_some_and(|former| variable_of(&flag_of(former)) == variable)
    }

    /// The name and the former name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.former)
    }

    /// The environment variables that set it: the regular one first, then one for each of its flags.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        let flags = std::iter::once(&self.flag).chain(&self.aliases);
        std::iter::once(self.variable.clone()).chain(flags.map(|flag| variable_of(flag)))
    }

    /// Placeholder for its value in the help.
    pub(crate) fn value_name(&self) -> &'static str {
        let last = self.name.rsplit('.').next().unwrap_or(self.name);
        match (last, self.kind) {
            _ if self.is_flag() => "BOOL",
            (_, SettingKind::Urls) => "URL",
            (_, SettingKind::Logins) => "NAME:PASSWORD",
            ("listen", _) => "ADDRESS:PORT",
            (
                "rules" | "certificate" | "key" | "client_ca" | "ca" | "handover",
                SettingKind::One | SettingKind::Many,
            ) => "FILE",
            ("trusted_proxies", _) => "NETWORK",
            ("deadline" | "store_deadline" | "jitter" | "health_interval" | "body_grace", _) => "DURATION",
            (last, _) if last.ends_with("_time") => "DURATION",
            (last, _) if last.ends_with("_header") => "HEADER",
            _ if self.default.first().is_some_and(|value| value.parse::<f64>().is_ok()) => "NUMBER",
            _ => "VALUE",
        }
    }

    /// Whether its value is true or false.
    pub(crate) fn is_flag(&self) -> bool {
        matches!(self.default, ["true" | "false"])
    }

    /// Whether it may have several values.
    pub(crate) const fn is_list(&self) -> bool {
        matches!(self.kind, SettingKind::Many | SettingKind::Urls | SettingKind::Logins)
    }

    /// A value without secrets.
    pub(crate) fn shown(&self, value: &str) -> String {
        match self.kind {
            SettingKind::One | SettingKind::Many => value.to_owned(),
            SettingKind::Secret => HIDDEN.to_owned(),
            SettingKind::Urls => {
                // URLs of Unix sockets have the password in the query.
                let (value, query) = value.split_once('?').map_or((value, ""), |(value, _)| (value, "?(hidden)"));
                match (value.find("://"), value.rfind('@')) {
                    (Some(scheme), Some(at)) if scheme < at => {
                        format!("{}{HIDDEN}{}{query}", &value[..scheme + 3], &value[at..])
                    }
                    _ => format!("{value}{query}"),
                }
            }
            SettingKind::Logins => match value.split_once(':') {
                Some((name, _)) => format!("{name}:{HIDDEN}"),
                None => HIDDEN.to_owned(),
            },
        }
    }
}

const HIDDEN: &str = "(hidden)";

fn flag_of(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

fn variable_of(flag: &str) -> String {
    format!("TIDEGATE_{}", flag.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::table::SETTINGS;

    #[test]
    fn a_file_with_any_setting_is_known_for_a_configuration_and_not_taken_for_rules() {
        use std::collections::BTreeSet;
        // Both kinds of files contain `rules`.
        let sections = SETTINGS.iter().filter_map(|setting| setting.name.split('.').next());
        let sections: BTreeSet<&str> = sections.filter(|name| *name != "rules").collect();
        assert_eq!(sections, tidegate_rules::SERVER_SETTINGS.into_iter().collect());
    }

    #[test]
    fn names_flags_and_variables_tell_settings_apart() {
        let flags: HashSet<String> = SETTINGS.iter().map(|setting| setting.flag.clone()).collect();
        let variables: HashSet<String> = SETTINGS.iter().map(|setting| setting.variable.clone()).collect();
        assert_eq!((flags.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
        let aliases: Vec<&String> = SETTINGS.iter().flat_map(|setting| &setting.aliases).collect();
        assert!(aliases.iter().all(|alias| !flags.contains(*alias)));
        let upstream = SETTINGS.iter().find(|setting| setting.name == "gateway.upstream").unwrap();
        assert!(upstream.is_set_by("TIDEGATE_UPSTREAM") && upstream.is_set_by("TIDEGATE_GATEWAY_UPSTREAM"));
        let listen = SETTINGS.iter().find(|setting| setting.name == "api.listen").unwrap();
        assert_eq!((listen.flag.as_str(), listen.variable.as_str()), ("api-listen", "TIDEGATE_API_LISTEN"));
    }

    #[test]
    fn every_setting_has_the_variable_and_the_flag_that_follow_from_its_name() {
        for setting in SETTINGS.iter() {
            let variable = format!("TIDEGATE_{}", setting.name.replace('.', "_").to_uppercase());
            assert_eq!(setting.variable, variable);
            let flag = setting.name.replace(['.', '_'], "-");
            assert!(setting.flag == flag || setting.aliases.contains(&flag), "{} has no flag --{flag}", setting.name);
            let others = SETTINGS.iter().filter(|other| other.name != setting.name);
            for name in setting.variables() {
                assert!(!others.clone().any(|other| other.is_set_by(&name)), "{name} sets two settings");
            }
        }
    }

    #[test]
    fn no_setting_is_a_section_too() {
        for setting in SETTINGS.iter() {
            assert!(!SETTINGS.iter().any(|other| other.section() == setting.name), "{}", setting.name);
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown =
            |name: &str, value: &str| SETTINGS.iter().find(|setting| setting.name == name).unwrap().shown(value);
        assert_eq!(shown("store.redis.password", "hunter2"), "(hidden)");
        assert_eq!(shown("store.redis.urls", "redis://me:hunter2@a:1/2"), "redis://(hidden)@a:1/2");
        assert_eq!(shown("store.redis.urls", "redis://a"), "redis://a");
        assert_eq!(shown("store.redis.regions", "eu=redis://me:hunter2@a:1"), "eu=redis://(hidden)@a:1");
        assert_eq!(shown("redis", "unix:///run/redis.sock?pass=hunter2"), "unix:///run/redis.sock?(hidden)");
        assert_eq!(shown("resp.users", "ann:tea:time"), "ann:(hidden)");
        assert_eq!(shown("resp.users", "tea"), "(hidden)");
    }
}
