-- Token bucket, GCRA and both leaky buckets.
makers[LEVEL] = function()
  local bucket = {}

  function bucket.read(raw)
    if #raw ~= LINE_LENGTH then return nil end
    local kind, a, b, spent = read_line(raw)
    if a == 0 or b == 0 then return nil end
    return { kind = kind, a = a, b = b, spent = spent, line = raw }
  end

  function bucket.fresh(limit)
    return { kind = limit.kind, a = limit.a, b = limit.b, spent = 0 }
  end

  function bucket.look(limit, state, cost)
    return answer(limit.kind, limit.a, limit.b, limit.capacity, state.spent, cost)
  end

  function bucket.moved(limit, state)
    local most = deepest(limit)
    if state.spent <= most then return nil end
    return { kind = limit.kind, a = limit.a, b = limit.b, spent = most }
  end

  function bucket.charge(limit, state, cost)
    local before = state.spent
    state.kind, state.line = limit.kind, nil
    state.spent = min(before + cost * limit.a, max(2 * limit.a * limit.capacity, before))
    return ceil((state.spent - before) / limit.a)
  end

  -- A shaper's mark is the end of its queue; other buckets need none.
  function bucket.mark(limit, state)
    if limit.kind ~= SHAPER then return pack('>I7I4', 0, 0) end
    return sub(state.line or write_line(SHAPER, state.a, state.b, state.spent), 12, 22)
  end

  -- A token that has come back in part already counts as given back.
  local function give_back(limit, state, cost)
    local before = state.spent
    state.spent, state.line = max(before - cost * limit.a, 0), nil
    return ceil((before - state.spent) / limit.a)
  end

  function bucket.credit(limit, state, cost)
    if limit.kind == SHAPER then return 0 end
    return give_back(limit, state, cost)
  end

  function bucket.refund(limit, state, cost, mark)
    if limit.kind == SHAPER and bucket.mark(limit, state) ~= mark then return 0 end
    return give_back(limit, state, cost)
  end

  function bucket.spent(state)
    return ceil(state.spent / state.a)
  end

  function bucket.is_blank(state)
    return state.spent == 0
  end

  function bucket.write(state)
    return write_line(state.kind, state.a, state.b, state.spent), ceil(state.spent / state.b) + UNIT * SPARE
  end

  kinds[LEVEL], kinds[TAT], kinds[SHAPER] = bucket, bucket, bucket
  return bucket
end
makers[TAT], makers[SHAPER] = makers[LEVEL], makers[LEVEL]

