-- Settling and renewing what is held.
local function holding()
  -- The actual cost compared with the held one.
  local LESS, MORE = 1, 2

  -- An open reservation: its expiry, its length, its cost and its mark.
  local function open_hold(name)
    local raw = call('GET', name)
    if not raw or #raw ~= 32 then return nil end
    local expires, ttl, taken = unpack_from('>I7I7I7', raw)
    if expires <= now then
      call('DEL', name)
      return nil
    end
    return ttl, taken, sub(raw, 22)
  end

  -- Refunds `back` of the charge at `mark`, or charges `more` on top, up to the most that a key may owe. Returns both.
  local function settle_cost(charge, back, more, mark)
    local state, same = known(charge.name, charge.kind), true
    if state and not has_shape(state, charge) then
      -- The key is under another limit by now, to which all was carried over as spent just then.
      same = false
      charge.kind, charge.a, charge.b, charge.own = state.kind, state.a, state.b, kind_of(state.kind)
    end
    state = state and trial(state) or charge.own.fresh(charge)
    local of, is_large, given, charged = state.leased or charge.own, state.is_large, 0, 0
    if back > 0 then
      given = same and of.refund(charge, state, back, mark) or not same and of.credit(charge, state, back) or 0
    end
    if more > 0 and not of.is_direct then charged = of.charge(charge, state, more) end
    if not of.is_direct and (given > 0 or more > 0 or (back > 0 and is_large and states[charge.name])) then
      keep(charge.name, state)
    end
    return given, charged
  end

  -- The held charges of a plan, with their marks and actual costs.
  local function read_held(plan)
    local held, at = {}, FIRST_CHARGE
    for number = 1, plan.count do
      held[number], at = read_charge(plan.body, at)
      held[number].mark, held[number].change, held[number].by, at = unpack_from('>I7BI7', plan.body, at)
    end
    return held
  end

  -- Settles one held charge. Returns what was refunded and what was charged on top; nil if it is gone.
  local function settle_one(charge, id)
    if charge.kind == SLOTS then
      local state = view(charge)
      if states[charge.name] ~= state then return nil end
      local freed = charge.of.release(charge, state, id)
      if freed == 0 then return nil end
      return freed, 0
    end
    local _, taken, mark = open_hold(charge.hold)
    if not taken then return nil end
    call('DEL', charge.hold)
    local back, more = 0, 0
    if charge.change == LESS then back = min(charge.by, taken) end
    if charge.change == MORE then more = charge.by end
    return settle_cost(charge, back, more, mark)
  end

  local function settle(plan, before)
    local held = read_held(plan)
    local reply = locate(held, before)
    if reply then return reply end
    reply = '\0'
    local id = sub(plan.body, -16)
    for _, charge in ipairs(held) do
      local given, charged = settle_one(charge, id)
      reply = reply .. pack('>BI7I7', given and 1 or 0, given or 0, charged or 0)
    end
    return reply
  end

  local function renew_one(charge, id)
    if charge.kind == SLOTS then
      local state = view(charge)
      return states[charge.name] == state and charge.of.renew(charge, state, id)
    end
    local ttl, taken, mark = open_hold(charge.hold)
    if not ttl then return false end
    call('SET', charge.hold, pack('>I7I7I7', min(now + ttl, LAST), ttl, taken) .. mark, 'PX', life(ttl))
    return true
  end

  local function renew(plan, before)
    local held = read_held(plan)
    local reply = locate(held, before)
    if reply then return reply end
    reply = '\0'
    local id = sub(plan.body, -16)
    for _, charge in ipairs(held) do reply = reply .. (renew_one(charge, id) and '\1' or '\0') end
    return reply
  end

  return settle, renew
end

