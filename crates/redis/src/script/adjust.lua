-- Penalties, credits and resets.
local function changing()
  local function adjust(plan, before, change)
    local charges = read_charges(plan)
    local foreign, charge = locate(charges, before), charges[1]
    if foreign then return foreign end
    local before_it, state = known(charge.name), view(charge)
    local moved = charge.of.moved(charge, state)
    -- Leases that are ahead are moved whatever else happens; other states only if they change, or if they are large.
    if moved and charge.of.is_direct then
      state = charge.of.move(moved)
    else
      state = moved or trial(state)
    end
    local is_large = state.is_large
    local is_kept = change(charge, state) or (before_it and is_large and has_shape(before_it, charge))
    if is_kept and not charge.of.is_direct then keep(charge.name, state) end
    if charge.of.is_direct then state = view(charge) end
    return '\0' .. pack('>BI7I7I7', charge.of.look(charge, state, 0))
  end

  -- With a mark (in place of a hold), only the first of several calls with this mark charges.
  local function penalize(plan, before)
    return adjust(plan, before, function(charge, state)
      if charge.hold and not call('SET', charge.hold, '', 'NX', 'PX', life(charge.ttl)) then return false end
      charge.of.charge(charge, state, charge.cost, ANONYMOUS)
      return true
    end)
  end

  local function credit(plan, before)
    return adjust(plan, before, function(charge, state)
      return charge.of.credit(charge, state, charge.cost) > 0
    end)
  end

  -- Forgets a key, except for what nodes may still spend of it.
  local function reset(_, before)
    local name = KEYS[before + 1]
    if not places[name] then places[name] = before + 1 end
    local state = known(name)
    if state == FOREIGN then return '\1\0\0' end
    if not state then return '\0\0' end
    if state.leased and state.leased.reset(state) then
      keep(name, state)
      return '\0\1'
    end
    call('DEL', name)
    states[name], stored[name] = false, nil
    return '\0\1'
  end

  return penalize, credit, reset
end

