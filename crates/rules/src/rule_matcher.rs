//! The match of a request against all rules.

use std::iter;

use smallvec::SmallVec;

use super::RuleSet;
use super::applicable_rule::ApplicableRule;
use super::index::RuleNumbers;
use super::matched::{Matched, MatchedRule, Refusing, RefusingRule};
use super::request_view::RequestView;
use super::rule::{Mode, Rule};
use super::rule_effect::RuleEffect;
use crate::facts::Facts;

impl RuleSet {
    /// The rules that govern a request, and their charges.
    #[inline]
    pub fn matching<'r, 'f>(&'r self, facts: &'f (impl Facts + ?Sized)) -> Matched<'r, 'f>
    where
        'r: 'f,
    {
        let mut matched = Matched::none();
        self.match_into(&mut matched, facts);
        matched
    }

    /// Fills in [`Matched::none`] in place: moving a value that was just written stalls the processor.
    pub(crate) fn match_into<'r, 'f>(&'r self, matched: &mut Matched<'r, 'f>, facts: &'f (impl Facts + ?Sized))
    where
        'r: 'f,
    {
        let written = &*self.written;
        let request = RequestView::new(facts, &written.tiers, self.stored_tiers());
        let mut refusing: Refusing<'r> = SmallVec::new();
        let mut numbers = RuleNumbers::new();
        for &number in written.index.find(&request, &mut numbers) {
            let (rule, mode) = (&written.rules[number as usize], self.modes[number as usize]);
            let Ok(readings) = rule.governs(mode, &request) else { continue };
            // Constructed in place.
            matched.rules.extend(iter::once_with(|| MatchedRule::begin(rule, mode, readings)));
            let Some(limiting) = matched.rules.last_mut() else { continue };
            match rule.apply(limiting, &request, &self.secret) {
                RuleEffect::Limited => matched.is_any_unkeyed |= limiting.is_unkeyed,
                RuleEffect::Refused(fault) => {
                    matched.rules.pop();
                    refusing.push((ApplicableRule { rule, mode, readings }, fault));
                }
                RuleEffect::NoLimit | RuleEffect::Skipped => {
                    matched.rules.pop();
                    continue;
                }
            }
            if rule.stops && (ApplicableRule { rule, mode, readings }).may_displace() {
                break;
            }
        }
        let replaces = |rule: &Rule| !rule.replaces.is_empty();
        if written.replaces
            && (matched.rules.iter().any(|limiting| replaces(limiting.rule))
                || refusing.iter().any(|(refused, _)| replaces(refused.rule)))
        {
            matched.leave_out_replaced(&mut refusing);
        }
        if written.sheds {
            matched.limit_by_priority(facts);
        }
        matched.is_adaptive = written.adapts;
        let refusal = refusing.into_iter().find(|(refused, _)| refused.mode == Mode::Enforce);
        matched.refused = refusal.map(|(refused, fault)| RefusingRule { rule: refused.rule, fault });
    }
}
