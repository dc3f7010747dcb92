//! Requests as Envoy rate-limit descriptors.

use std::num::NonZeroU64;

use smallvec::{SmallVec, smallvec};

use super::batch::{Action, Charging, PolicySource, RuleCharges};
use super::ruled_charge::RuledCharge;
use super::ruling::{Ruled, Ruling};
use super::{Generation, Limiter};
use crate::envoy::{DescriptorMatch, Domain, Entries, EntryFacts, PerUnit, mark_replaced};
use crate::{Matched, Mode, OnStoreFailure};
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Clock, Micros, Store, Verdict};

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRequest<'e> {
    /// Its entries.
    pub entries: Entries<'e>,
    /// The requested hits.
    pub hits: Hits,
    /// The limit that comes with the descriptor and overrides that of the file. Tidegate's own rules ignore it.
    pub limit: Option<PerUnit>,
}

/// The hits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Takes this many hits.
    Take(NonZeroU64),
    /// Takes none. The descriptor is over its limit if less than one hit is left.
    Check,
    /// Refunds this many hits taken before. Never denied.
    Refund(NonZeroU64),
}

impl Hits {
    /// One request.
    pub const ONE: Hits = Hits::Take(NonZeroU64::MIN);

    /// This many hits, to be taken or refunded.
    #[must_use]
    pub const fn of(hits: u64, is_refund: bool) -> Hits {
        match (NonZeroU64::new(hits), is_refund) {
            (None, _) => Hits::Check,
            (Some(hits), false) => Hits::Take(hits),
            (Some(hits), true) => Hits::Refund(hits),
        }
    }

    const fn cost(self) -> u64 {
        match self {
            Hits::Take(hits) | Hits::Refund(hits) => hits.get(),
            Hits::Check => 1,
        }
    }

    const fn action(self) -> Action {
        match self {
            Hits::Take(_) => Action::Take,
            Hits::Check => Action::Check,
            Hits::Refund(_) => Action::Refund,
        }
    }
}

/// Settings for all descriptors of a domain that Envoy's files do not support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainTerms {
    /// Whether the descriptors of one request depend on each other.
    pub charging: Charging,
    /// The policy for requests that the store cannot decide.
    pub on_store_failure: OnStoreFailure,
    /// The time that a request can wait for the store; `None` for the store's default.
    pub store_deadline: Option<Micros>,
}

/// The decision on a request with descriptors.
#[derive(Clone, Debug)]
pub struct DescriptorsRuling<'d, 'e> {
    /// The ruling on all descriptors together.
    pub ruling: Ruling<'static>,
    /// The ruling on each descriptor, in order.
    pub descriptors: SmallVec<[DescriptorRuling<'d, 'e>; 2]>,
}

/// The decision on one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorRuling<'d, 'e> {
    /// The matching descriptor in Envoy's files; `None` if there is none, or if Tidegate's own rules decided it.
    pub found: Option<DescriptorMatch<'d, 'e>>,
    /// Whether the descriptor's status is over its limit. In quota mode it may be, without denying. A limit with shadow
    /// mode in its file is never over; a limit in shadow mode because of a [switch](crate::Switches::switch_all) may be.
    pub is_over: bool,
    /// Whether it is over a limit in shadow mode, which does not deny it.
    pub is_over_in_shadow: bool,
    /// The index in [`Ruling::ruled`] of its binding limit; `None` if it has no limit.
    pub binding: Option<usize>,
    /// The index of the binding limit among those that clients may see; `None` if there is none.
    pub disclosed: Option<usize>,
}

impl<'d, 'e> DescriptorRuling<'d, 'e> {
    /// A descriptor within its limit, as far as is known yet.
    const fn within(found: Option<DescriptorMatch<'d, 'e>>) -> DescriptorRuling<'d, 'e> {
        DescriptorRuling { found, is_over: false, is_over_in_shadow: false, binding: None, disclosed: None }
    }
}

impl<'d, 'e> DescriptorsRuling<'d, 'e> {
    /// The decision on descriptors of an unknown domain, which have no limit.
    #[must_use]
    pub fn unlimited(generation: &Generation, descriptors: usize) -> DescriptorsRuling<'d, 'e> {
        let nothing = || DescriptorRuling::within(None);
        DescriptorsRuling {
            ruling: Ruling::of_nothing(generation),
            descriptors: (0..descriptors).map(|_| nothing()).collect(),
        }
    }

    /// The binding limit of a descriptor; `None` if it has no limit.
    #[must_use]
    pub fn binding(&self, descriptor: &DescriptorRuling<'_, '_>) -> Option<&Ruled<'static>> {
        self.ruling.ruled.get(descriptor.binding?)
    }

    /// The binding limit of a descriptor among those that clients may see; `None` if there is none.
    #[must_use]
    pub fn disclosed(&self, descriptor: &DescriptorRuling<'_, '_>) -> Option<&Ruled<'static>> {
        self.ruling.ruled.get(descriptor.disclosed?)
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request with descriptors in an Envoy domain, and charges it if it may go ahead.
    ///
    /// The domain belongs to `generation`, which is usually the [present one](Limiter::rules).
    ///
    /// ```
    /// use tidegate_rules::{DescriptorRequest, DomainTerms, Hits, Limiter, RuleSet};
    /// use tidegate_core::MemoryStore;
    /// use tidegate_core::store::now_or_never;
    ///
    /// let text = "
    /// domain: edge
    /// descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }]
    /// ";
    /// let rules = RuleSet::parse("edge.yaml", text).map_err(|findings| findings.to_string())?.rules;
    /// let limiter = Limiter::new(rules, MemoryStore::new());
    /// let generation = limiter.rules();
    /// let domain = generation.rules.domain("edge").ok_or("no such domain")?;
    ///
    /// let alice = [DescriptorRequest { entries: &[("user", "alice")], hits: Hits::ONE, limit: None }];
    /// let terms = DomainTerms::default();
    /// let check = || now_or_never(limiter.check_descriptors(&generation, domain, &alice, &terms));
    /// assert!(check().is_some_and(|first| first.ruling.is_allowed()));
    /// assert!(check().is_some_and(|second| second.descriptors[0].is_over));
    /// # Ok::<(), String>(())
    /// ```
    pub async fn check_descriptors<'d, 'e>(
        &self,
        generation: &'d Generation,
        domain: &'d Domain,
        asked: &[DescriptorRequest<'e>],
        terms: &DomainTerms,
    ) -> DescriptorsRuling<'d, 'e> {
        let mut found: SmallVec<[Option<DescriptorMatch<'d, 'e>>; 2]> =
            asked.iter().map(|asked| asked.find(domain)).collect();
        mark_replaced(&mut found);
        let mut ruling = Ruling::of_nothing(generation);
        let mut claims: SmallVec<[RuleCharges<'_>; 2]> = SmallVec::new();
        let mut of: SmallVec<[(usize, Mode, bool); 2]> = SmallVec::new();
        for (index, (found, asked)) in found.iter().zip(asked).enumerate() {
            let Some(found) = found else { continue };
            let mode = generation.rules.mode_of_found(found);
            if let Some(claim) = claim(found, asked, mode, terms) {
                claims.push(claim);
                let written = if found.shadow_mode() { Mode::Shadow } else { Mode::Enforce };
                of.push((index, mode, generation.rules.reports_as_written(written)));
            }
        }
        let places = self.decide_claims(&claims, terms.charging, false, &mut ruling).await;
        drop(claims);
        let mut descriptors: SmallVec<[DescriptorRuling<'d, 'e>; 2]> =
            found.into_iter().map(DescriptorRuling::within).collect();
        for ((index, mode, tells), place) in of.into_iter().zip(places) {
            if let (Some(descriptor), Some(ruled)) = (descriptors.get_mut(index), ruling.ruled.get(place.start)) {
                let is_over = !ruled.decision.is_allowed();
                descriptor.binding = Some(place.start);
                descriptor.disclosed = ruled.disclosure.is_shown.then_some(place.start);
                descriptor.is_over = is_over && (mode == Mode::Enforce || tells);
                descriptor.is_over_in_shadow = is_over && mode == Mode::Shadow;
            }
        }
        DescriptorsRuling { ruling, descriptors }
    }

    /// Decides a request with descriptors by Tidegate's own rules: the entries of each descriptor are [facts](EntryFacts),
    /// and the rules that govern them charge them. All descriptors are decided together.
    pub async fn check_entries<'d, 'e>(
        &self,
        generation: &'d Generation,
        asked: &[DescriptorRequest<'e>],
        charging: Charging,
    ) -> DescriptorsRuling<'d, 'e> {
        self.check_entries_then(generation, asked, charging, |_, _| {}).await
    }

    /// Like [`Limiter::check_entries`], for callers that need more than the decision: `inspect` gets the ruling, and
    /// every charge with its decision.
    pub async fn check_entries_then<'d, 'e>(
        &self,
        generation: &'d Generation,
        asked: &[DescriptorRequest<'e>],
        charging: Charging,
        inspect: impl FnOnce(&Ruling<'_>, &mut dyn Iterator<Item = RuledCharge<'_>>),
    ) -> DescriptorsRuling<'d, 'e> {
        let facts: SmallVec<[EntryFacts<'e>; 2]> =
            asked.iter().map(|asked| EntryFacts::new(asked.entries).hits(asked.hits.cost())).collect();
        // All are asked for before any is awaited, so that the waits do not add up.
        facts.iter().for_each(|facts| generation.rules.ask_tier(facts));
        for facts in &facts {
            generation.rules.learn_tier(facts).await;
        }
        let matched: SmallVec<[Matched<'_, '_>; 2]> =
            facts.iter().map(|facts| generation.rules.matching(facts)).collect();
        let mut ruling = Ruling::of_nothing(generation);
        ruling.refused = matched.iter().find_map(|matched| matched.refused).map(Into::into);
        let mut claims: SmallVec<[RuleCharges<'_>; 4]> = SmallVec::new();
        let mut of: SmallVec<[(usize, bool); 4]> = SmallVec::new();
        for (index, (matched, asked)) in matched.iter().zip(asked).enumerate() {
            for rule in &matched.rules {
                let (charges, failure_policy) = (rule.charges_and_aliases().collect(), PolicySource::Rule(rule));
                claims.push(RuleCharges { charges, mode: rule.mode, action: asked.hits.action(), failure_policy });
                let reports = rule.mode == Mode::Enforce || generation.rules.reports_as_written(rule.rule.mode());
                of.push((index, reports));
            }
        }
        let refused = ruling.refused.is_some();
        let places = self.decide_claims(&claims, charging, refused, &mut ruling).await;
        let rules = matched.iter().flat_map(|matched| &matched.rules);
        let mut ruled_charges = rules.zip(&places).flat_map(|(matched, place)| {
            let ruled = ruling.ruled.get(place.clone()).unwrap_or_default();
            let charges = matched.charges().zip(ruled).enumerate();
            charges.map(move |(number, (charge, ruled))| RuledCharge { matched, number, charge, ruled })
        });
        inspect(&ruling, &mut ruled_charges);
        let descriptors = matched.iter().enumerate().map(|(index, matched)| {
            let own = of.iter().zip(&places).filter(|((of, _), _)| *of == index);
            let own = own.flat_map(|((_, tells), place)| place.clone().map(|place| (place, *tells)));
            binding_limit(&ruling, &own.collect::<SmallVec<[(usize, bool); 4]>>(), matched.refused.is_some())
        });
        DescriptorsRuling { descriptors: descriptors.collect(), ruling }
    }
}

impl<'e> DescriptorRequest<'e> {
    fn find<'d>(&self, domain: &'d Domain) -> Option<DescriptorMatch<'d, 'e>> {
        match self.limit {
            Some(limit) => domain.overridden(self.entries, limit).ok(),
            None => domain.find(self.entries),
        }
    }
}

/// The claim of a descriptor; `None` if it has no limit.
fn claim<'a>(
    found: &'a DescriptorMatch<'_, '_>,
    asked: &DescriptorRequest<'_>,
    mode: Mode,
    terms: &DomainTerms,
) -> Option<RuleCharges<'a>> {
    let mode = match mode {
        Mode::Off => return None,
        // Quota mode reports, but does not deny.
        Mode::Enforce if found.quota_mode() => Mode::Shadow,
        Mode::Enforce | Mode::Shadow => mode,
    };
    let charge = Charge { deadline: terms.store_deadline, ..found.charge(asked.hits.cost())? };
    let failure_policy = PolicySource::Policy(terms.on_store_failure);
    Some(RuleCharges { charges: smallvec![charge], mode, action: asked.hits.action(), failure_policy })
}

/// The ruling on one descriptor from the limits at these places. Limits that affect its status precede those that do not.
fn binding_limit<'d, 'e>(ruling: &Ruling<'_>, places: &[(usize, bool)], is_refused: bool) -> DescriptorRuling<'d, 'e> {
    let deniers: SmallVec<[usize; 4]> = places.iter().filter(|(_, tells)| *tells).map(|(place, _)| *place).collect();
    let all: SmallVec<[usize; 4]> = places.iter().map(|(place, _)| *place).collect();
    let is_over_in_shadow = all
        .iter()
        .filter_map(|&place| ruling.ruled.get(place))
        .any(|ruled| ruled.mode == Mode::Shadow && !ruled.decision.is_allowed());
    let candidates = if deniers.is_empty() { all } else { deniers.clone() };
    let (verdict, binding) = binding_among(ruling, &candidates);
    let is_disclosed = |&place: &usize| ruling.ruled.get(place).is_some_and(|ruled| ruled.disclosure.is_shown);
    let disclosed = if candidates.iter().all(is_disclosed) {
        binding
    } else {
        let shown: SmallVec<[usize; 4]> = candidates.into_iter().filter(is_disclosed).collect();
        binding_among(ruling, &shown).1
    };
    DescriptorRuling {
        found: None,
        is_over: is_refused || (!deniers.is_empty() && !verdict.is_allowed()),
        is_over_in_shadow,
        binding,
        disclosed,
    }
}

/// The verdict of the limits at these places, and the place of the binding one.
fn binding_among(ruling: &Ruling<'_>, places: &[usize]) -> (Verdict, Option<usize>) {
    let decisions: Decisions =
        places.iter().filter_map(|&place| ruling.ruled.get(place)).map(|ruled| ruled.decision).collect();
    let verdict = Verdict::of(&decisions);
    let binding = verdict.binding.and_then(|number| places.get(number)).copied();
    (verdict, binding)
}
