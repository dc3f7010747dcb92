-- Renewals of leases: a node reports the tokens that it held, and asks for more.
local function leasing()
  record = record or recording()
  local leased = record
  local part_of, keep_floor, outstanding = leased.part_of, leased.keep_floor, leased.outstanding
  local quotient, end_of = leased.quotient, leased.end_of
  local RENEWAL = '>BI7I7I7I7I7I7I7I7I7I7I7'
  local MOST_DEMAND, SHARES = 16777215, 1024
  local HAS_GENERATION, HAS_PART, CLAIMS, HAS_TERMS, IS_COUNTED = 1, 2, 4, 8, 16

  local function has(flags, flag)
    return flags % (2 * flag) >= flag
  end

  local function read_renewals(plan)
    local renewals, at = {}, FIRST_CHARGE
    for number = 1, plan.count do
      local renewal, flags, epoch, part, used, kept, returned, wanted, demand, counted, most
      local per_interval, recovers
      renewal, at = read_charge(plan.body, at)
      flags, epoch, part, used, kept, returned, wanted, demand, counted, most, per_interval, recovers, at =
        unpack_from(RENEWAL, plan.body, at)
      renewal.report = has(flags, HAS_GENERATION) and {
        epoch = epoch, part = has(flags, HAS_PART) and part, used = used, kept = kept, returned = returned,
        claims = has(flags, CLAIMS),
      }
      renewal.wanted, renewal.demand, renewal.counted = wanted, demand, has(flags, IS_COUNTED) and counted
      renewal.terms = has(flags, HAS_TERMS) and { most = most, per_interval = per_interval, recovers = recovers }
      renewals[number] = renewal
    end
    return renewals
  end

  local function add_outstanding(state, tokens)
    state.o1 = min(state.o1 + tokens, MOST_TOKENS)
  end

  -- Accounts for the tokens that a node reports.
  local function account(renewal, state)
    local report = renewal.report
    -- Tokens of another part have ended with it.
    if not report or report.part ~= state.part then return end
    local reported = report.used + report.kept + report.returned
    local age = state.epoch - report.epoch
    local recorded = age == 0 and state.o1 or age == 1 and state.o0
    if recorded and not report.claims and reported <= recorded then
      if age == 0 then state.o1 = recorded - reported else state.o0 = recorded - reported end
      add_outstanding(state, report.kept)
      kind_of(state.kind).credit(renewal, state, report.returned)
    elseif age < 2 or report.claims then
      -- This server does not know all of them: it is another one, or has lost data, or its clock has stepped back.
      add_outstanding(state, report.kept)
    end
    keep_floor(state)
  end

  -- How many tokens to grant: half of the room that is left, or, if tokens are scarce, a share by demand of those available
  -- and of those that recover until the node asks again.
  local function size(renewal, state, available, is_short)
    local room = max(renewal.terms.most - outstanding(state), 0)
    local fair
    if is_short then
      local demand = min(renewal.demand, MOST_DEMAND)
      local share = quotient(demand * SHARES, max(state.w1, state.w0, demand, 1))
      fair = quotient(share * (5 * available + 9 * renewal.terms.recovers), 10 * SHARES)
    else
      fair = quotient(room, 2)
    end
    local tokens = min(renewal.wanted, available, room, max(fair, renewal.cost))
    return tokens < renewal.cost and 0 or tokens
  end

  -- The decision on the least that is of use to the node, with the numbers of the key as it is.
  local function standing(look, renewal, state)
    local outcome, remaining, reset, wait = look(renewal, state, 0, state.spent)
    if renewal.cost > remaining then outcome, remaining, reset, wait = look(renewal, state, renewal.cost, state.spent) end
    return pack('>BI7I7I7', outcome, remaining, reset, wait)
  end

  -- Whether a node only returns tokens. It may not know of the rule's present limit.
  local function is_return(renewal)
    local report = renewal.report
    return renewal.wanted == 0 and report and report.kept == 0 and report.returned > 0
  end

  -- `is_known` unless the key is under another limit than the one of the renewal.
  local function grant(renewal, state, is_known)
    if not is_return(renewal) then leased.hold(renewal, state) end
    local part, ends = part_of(state)
    if outstanding(state) == 0 then state.part = part end
    account(renewal, state)
    if renewal.counted ~= state.epoch then state.w1 = min(state.w1 + renewal.demand, MOST_DEMAND) end
    local of = kind_of(state.kind)
    local _, available = of.look(renewal, state, 0)
    local is_granted = is_known and renewal.terms and state.part == part
    local is_short = is_granted and available < renewal.terms.per_interval
    local tokens = is_granted and size(renewal, state, available, is_short) or 0
    if tokens > 0 then
      of.charge(renewal, state, tokens, ANONYMOUS)
      add_outstanding(state, tokens)
    end
    local ends_after = max(min(ends, end_of(state.epoch + 1)) - now, 0)
    return pack('>BI7I7BI7I7BI7', 1, tokens, state.epoch, state.part and 1 or 0, state.part or 0,
      min(ends_after, 2 * EPOCH), is_short and 1 or 0, outstanding(state))
      .. (is_known and standing(leased.answer, renewal, state) or pack('>BI7I7I7', ALLOW, 0, 0, 0))
  end

  -- Stores a record. One that was there is stored in any case, another one only if the state that it belongs to is.
  local function keep_record(name, state, was_leased)
    if was_leased and states[name] == state or not leased.is_blank(state) then
      state.is_recorded = true
      leased.conclude(state)
      keep(name, state)
    end
  end

  local function lease_one(renewal)
    local name, found = renewal.name, known(renewal.name, renewal.kind)
    local is_elsewhere = found and is_return(renewal) and not has_shape(found, renewal)
    if is_elsewhere and found.leased and outstanding(found) > 0 then
      -- As for a receipt: the tokens go to the limit that the key has by now.
      renewal.kind, renewal.a, renewal.b = found.kind, found.a, found.b
      renewal.own, renewal.of = kind_of(found.kind), found.leased
      local reply = grant(renewal, found, false)
      keep_record(name, found, true)
      return reply
    end
    local state, moved = look_up(renewal)
    local is_leased = state.leased
    if not is_leased then
      if not leased.can_be(renewal.kind) then return '\0' .. standing(renewal.of.look, renewal, moved or state) end
      state = leased.begin(moved or state)
    end
    local reply = grant(renewal, state, true)
    -- A return that comes too late changes nothing.
    if not is_elsewhere then keep_record(name, state, is_leased) end
    return reply
  end

  -- Answers the renewals of nodes, each by itself.
  local function lease(plan, before)
    local renewals = read_renewals(plan)
    local foreign = locate(renewals, before)
    if foreign then return foreign end
    local replies = {}
    for number = 1, plan.count do replies[number] = lease_one(renewals[number]) end
    return '\0' .. table.concat(replies)
  end

  return lease
end
