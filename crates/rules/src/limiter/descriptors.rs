//! Requests that come as Envoy's rate-limit descriptors.

use std::num::NonZeroU64;

use smallvec::{SmallVec, smallvec};

use super::claims::{Aim, Charging, Claim, WithoutStore};
use super::ruling::{Ruled, Ruling};
use super::{Generation, Limiter};
use crate::envoy::{Domain, Entries, EntryFacts, Found, PerUnit, mark_replaced};
use crate::{Matched, Mode, OnStoreFailure};
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Clock, Micros, Store, Verdict};

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'e> {
    /// What it says of the request.
    pub entries: Entries<'e>,
    /// What it asks for.
    pub hits: Hits,
    /// The limit that it brings, instead of what a file says. Our own rules do not look at it.
    pub limit: Option<PerUnit>,
}

/// How much a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// This much.
    Take(NonZeroU64),
    /// Nothing. It is over its limit if there is not even one left.
    Check,
    /// So much less than was taken before. This is never denied.
    GiveBack(NonZeroU64),
}

impl Hits {
    /// One request.
    pub const ONE: Hits = Hits::Take(NonZeroU64::MIN);

    /// So many, to be taken or to be given back.
    #[must_use]
    pub const fn of(hits: u64, are_given_back: bool) -> Hits {
        match (NonZeroU64::new(hits), are_given_back) {
            (None, _) => Hits::Check,
            (Some(hits), false) => Hits::Take(hits),
            (Some(hits), true) => Hits::GiveBack(hits),
        }
    }

    const fn cost(self) -> u64 {
        match self {
            Hits::Take(hits) | Hits::GiveBack(hits) => hits.get(),
            Hits::Check => 1,
        }
    }

    const fn aim(self) -> Aim {
        match self {
            Hits::Take(_) => Aim::Take,
            Hits::Check => Aim::Check,
            Hits::GiveBack(_) => Aim::GiveBack,
        }
    }
}

/// What goes for all descriptors of a domain, as Envoy's files have no place for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainTerms {
    /// What becomes of a denied request's other descriptors.
    pub charging: Charging,
    /// What to do when the store cannot decide.
    pub on_store_failure: OnStoreFailure,
    /// For how long a request can wait for the store; `None` leaves it to the store.
    pub store_deadline: Option<Micros>,
}

/// What was decided on a request that came as descriptors.
#[derive(Clone, Debug)]
pub struct DescriptorsRuling<'d, 'e> {
    /// What was decided on all of them together.
    pub ruling: Ruling<'static>,
    /// On each of them, in their order.
    pub descriptors: SmallVec<[DescriptorRuling<'d, 'e>; 2]>,
}

/// What was decided on one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorRuling<'d, 'e> {
    /// What it falls under in Envoy's files; `None` if they do not name it, or if our own rules decided it.
    pub found: Option<Found<'d, 'e>>,
    /// Whether it is over its limit, as its status says. One in quota mode says so, and does not deny. A limit that is written in
    /// shadow mode never says so; one that is there because [everything is](crate::Switches::switch_all) does.
    pub is_over: bool,
    /// Whether it is over a limit that does not deny it because it is in shadow mode.
    pub is_over_in_shadow: bool,
    /// Which of [`Ruling::ruled`] says most about it; `None` if nothing limits it.
    pub telling: Option<usize>,
}

impl<'d, 'e> DescriptorRuling<'d, 'e> {
    /// Within its limit, as far as is known yet.
    const fn within(found: Option<Found<'d, 'e>>) -> DescriptorRuling<'d, 'e> {
        DescriptorRuling { found, is_over: false, is_over_in_shadow: false, telling: None }
    }
}

impl<'d, 'e> DescriptorsRuling<'d, 'e> {
    /// What is decided on descriptors of a domain that nobody knows: nothing limits them.
    #[must_use]
    pub fn unlimited(generation: &Generation, descriptors: usize) -> DescriptorsRuling<'d, 'e> {
        let nothing = || DescriptorRuling::within(None);
        DescriptorsRuling {
            ruling: Ruling::of_nothing(generation),
            descriptors: (0..descriptors).map(|_| nothing()).collect(),
        }
    }

    /// What says most about a descriptor; `None` if nothing limits it.
    #[must_use]
    pub fn told(&self, descriptor: &DescriptorRuling<'_, '_>) -> Option<&Ruled<'static>> {
        self.ruling.ruled.get(descriptor.telling?)
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request that comes as descriptors of one of Envoy's domains, and charges it if it may go ahead.
    ///
    /// The domain is one of `generation`, which is usually the [present one](Limiter::rules).
    ///
    /// ```
    /// use tidegate_rules::{Asked, DomainTerms, Hits, Limiter, RuleSet};
    /// use tidegate_core::MemoryStore;
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
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
    /// let alice = [Asked { entries: &[("user", "alice")], hits: Hits::ONE, limit: None }];
    /// let terms = DomainTerms::default();
    /// # fn ready<T>(answer: impl Future<Output = T>) -> T {
    /// #     match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
    /// #         Poll::Ready(decided) => decided,
    /// #         Poll::Pending => unreachable!(),
    /// #     }
    /// # }
    /// # let first = ready(limiter.check_descriptors(&generation, domain, &alice, &terms));
    /// # let second = ready(limiter.check_descriptors(&generation, domain, &alice, &terms));
    /// # /*
    /// let first = limiter.check_descriptors(&generation, domain, &alice, &terms).await;
    /// let second = limiter.check_descriptors(&generation, domain, &alice, &terms).await;
    /// # */
    /// assert!(first.ruling.is_allowed());
    /// assert!(second.descriptors[0].is_over);
    /// # Ok::<(), String>(())
    /// ```
    pub async fn check_descriptors<'d, 'e>(
        &self,
        generation: &'d Generation,
        domain: &'d Domain,
        asked: &[Asked<'e>],
        terms: &DomainTerms,
    ) -> DescriptorsRuling<'d, 'e> {
        let mut found: SmallVec<[Option<Found<'d, 'e>>; 2]> = asked.iter().map(|asked| asked.find(domain)).collect();
        mark_replaced(&mut found);
        let mut ruling = Ruling::of_nothing(generation);
        let mut claims: SmallVec<[Claim<'_>; 2]> = SmallVec::new();
        let mut of: SmallVec<[(usize, Mode, bool); 2]> = SmallVec::new();
        for (index, (found, asked)) in found.iter().zip(asked).enumerate() {
            let Some(found) = found else { continue };
            let mode = generation.rules.mode_of_found(found);
            if let Some(claim) = claim(found, asked, mode, terms) {
                claims.push(claim);
                let written = if found.shadow_mode() { Mode::Shadow } else { Mode::Enforce };
                of.push((index, mode, generation.rules.tells_as_written(written)));
            }
        }
        let places = self.decide_claims(&claims, terms.charging, false, &mut ruling).await;
        drop(claims);
        let mut descriptors: SmallVec<[DescriptorRuling<'d, 'e>; 2]> =
            found.into_iter().map(DescriptorRuling::within).collect();
        for ((index, mode, tells), place) in of.into_iter().zip(places) {
            if let (Some(descriptor), Some(ruled)) = (descriptors.get_mut(index), ruling.ruled.get(place.start)) {
                let is_over = !ruled.decision.is_allowed();
                descriptor.telling = Some(place.start);
                descriptor.is_over = is_over && (mode == Mode::Enforce || tells);
                descriptor.is_over_in_shadow = is_over && mode == Mode::Shadow;
            }
        }
        DescriptorsRuling { ruling, descriptors }
    }

    /// Decides a request that comes as descriptors by our own rules: each descriptor's entries are
    /// [facts](EntryFacts), and the rules that govern them charge them. All descriptors are decided together.
    pub async fn check_entries<'d, 'e>(
        &self,
        generation: &'d Generation,
        asked: &[Asked<'e>],
        charging: Charging,
    ) -> DescriptorsRuling<'d, 'e> {
        let facts: SmallVec<[EntryFacts<'e>; 2]> =
            asked.iter().map(|asked| EntryFacts::new(asked.entries).hits(asked.hits.cost())).collect();
        let matched: SmallVec<[Matched<'_, '_>; 2]> =
            facts.iter().map(|facts| generation.rules.matching(facts)).collect();
        let mut ruling = Ruling::of_nothing(generation);
        ruling.refused = matched.iter().find_map(|matched| matched.refused).map(Into::into);
        let mut claims: SmallVec<[Claim<'_>; 4]> = SmallVec::new();
        let mut of: SmallVec<[(usize, bool); 4]> = SmallVec::new();
        for (index, (matched, asked)) in matched.iter().zip(asked).enumerate() {
            for rule in &matched.rules {
                let (charges, without_store) = (rule.charges_and_aliases().collect(), WithoutStore::Rule(rule));
                claims.push(Claim { charges, mode: rule.mode, aim: asked.hits.aim(), without_store });
                let tells = rule.mode == Mode::Enforce || generation.rules.tells_as_written(rule.rule.mode());
                of.push((index, tells));
            }
        }
        let refused = ruling.refused.is_some();
        let places = self.decide_claims(&claims, charging, refused, &mut ruling).await;
        let descriptors = matched.iter().enumerate().map(|(index, matched)| {
            let own = of.iter().zip(&places).filter(|((of, _), _)| *of == index);
            let own = own.flat_map(|((_, tells), place)| place.clone().map(|place| (place, *tells)));
            most_telling(&ruling, &own.collect::<SmallVec<[(usize, bool); 4]>>(), matched.refused.is_some())
        });
        DescriptorsRuling { descriptors: descriptors.collect(), ruling }
    }
}

impl<'e> Asked<'e> {
    fn find<'d>(&self, domain: &'d Domain) -> Option<Found<'d, 'e>> {
        match self.limit {
            Some(limit) => domain.overridden(self.entries, limit).ok(),
            None => domain.find(self.entries),
        }
    }
}

/// What a descriptor that falls under something asks of its limit; `None` if nothing limits it.
fn claim<'a>(found: &'a Found<'_, '_>, asked: &Asked<'_>, mode: Mode, terms: &DomainTerms) -> Option<Claim<'a>> {
    let mode = match mode {
        Mode::Off => return None,
        // One in quota mode tells, and does not deny.
        Mode::Enforce if found.quota_mode() => Mode::Shadow,
        Mode::Enforce | Mode::Shadow => mode,
    };
    let charge = Charge { deadline: terms.store_deadline, ..found.charge(asked.hits.cost())? };
    let without_store = WithoutStore::Policy(terms.on_store_failure);
    Some(Claim { charges: smallvec![charge], mode, aim: asked.hits.aim(), without_store })
}

/// What the limits at these places say of one descriptor. Those that say no in its status come before those that do not.
fn most_telling<'d, 'e>(ruling: &Ruling<'_>, places: &[(usize, bool)], is_refused: bool) -> DescriptorRuling<'d, 'e> {
    let deniers: SmallVec<[usize; 4]> = places.iter().filter(|(_, tells)| *tells).map(|(place, _)| *place).collect();
    let all: SmallVec<[usize; 4]> = places.iter().map(|(place, _)| *place).collect();
    let is_over_in_shadow = all
        .iter()
        .filter_map(|&place| ruling.ruled.get(place))
        .any(|ruled| ruled.mode == Mode::Shadow && !ruled.decision.is_allowed());
    let telling = if deniers.is_empty() { &all } else { &deniers };
    let decisions: Decisions =
        telling.iter().filter_map(|&place| ruling.ruled.get(place)).map(|ruled| ruled.decision).collect();
    let verdict = Verdict::of(&decisions);
    DescriptorRuling {
        found: None,
        is_over: is_refused || (!deniers.is_empty() && !verdict.is_allowed()),
        is_over_in_shadow,
        telling: verdict.binding.and_then(|telling_one| telling.get(telling_one)).copied(),
    }
}
