local KEYS, ARGV, call = KEYS, ARGV, redis.call
local pack, unpack_from, sub = struct.pack, struct.unpack, string.sub
local EXACT, MANY, FEW = 9007199254740992, 4000, 16

local now, slack = ARGV[1], 86400000
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
  -- One millisecond for the fraction that Redis does not count, one for a reading of its clock just before this one.
  slack = 2
else
  -- Redis' clock says nothing about somebody else's: what their clock needs is kept for a day longer.
  now = tonumber(now)
end

-- Parsed bodies. Most requests of a call share a few bodies, and each of those is parsed once.
local plans, are_whole = {}, true
for number = 2, #ARGV do
  local body = ARGV[number]
  if not plans[body] then
    local operation, keys, whole, count = unpack_from('>BI2I2I2', body)
    local plan = { body = body, operation = operation, keys = keys, whole = whole, count = count }
    local is_final = operation == 1 and #body == 7 + 36 * count
    -- A single final charge to a bucket that can hold it: its line's first bytes, and its numbers in drops.
    if is_final and count == 1 then
      local kind, _, cost, _, _, a, b, capacity = unpack_from('>BI2I7I2I7I6I4I7', body, 8)
      if kind > 15 then kind = kind - 16 end
      if kind <= 3 and cost <= capacity then
        plan.line, plan.a, plan.b = pack('>BI6I4', kind, a, b), a, b
        plan.asked, plan.full, plan.is_shaper = cost * a, capacity * a, kind == 3
      end
    end
    -- Final charges to buckets and windows, each to a key of its own: seven numbers for each.
    if is_final and not plan.line and count > 0 and count <= FEW and keys == count and whole == count then
      local charges, at = {}, 8
      for first = 1, 7 * count, 7 do
        local kind, key, cost, _, _, a, b, capacity
        kind, key, cost, _, _, a, b, capacity, at = unpack_from('>BI2I7I2I7I6I4I7', body, at)
        if kind > 15 then kind = kind - 16 end
        -- Of sliding windows, only those of one part.
        if cost > capacity or kind > 4 and (kind ~= 6 or b ~= 1 or cost == 0) then
          charges = nil
          break
        end
        charges[first], charges[first + 1], charges[first + 2] = key, pack('>BI6I4', kind, a, b), a
        if kind <= 3 then cost, capacity = cost * a, capacity * a end
        charges[first + 3], charges[first + 4], charges[first + 5], charges[first + 6] = b, cost, capacity, kind
      end
      plan.final, plan.format = charges, charges and '>B' .. string.rep('BI7I7I7', count)
    end
    plans[body], are_whole = plan, are_whole and whole == keys
  end
end

-- Reads all states that are read whole.
local raws = {}
if are_whole and #KEYS <= MANY then
  if #KEYS > 0 then raws = call('MGET', unpack(KEYS)) end
else
  local names, wanted, before = {}, {}, 0
  for number = 2, #ARGV do
    local plan = plans[ARGV[number]]
    for place = before + 1, before + plan.whole do
      names[#names + 1], wanted[#wanted + 1] = KEYS[place], place
    end
    before = before + plan.keys
  end
  for from = 1, #names, MANY do
    local some = call('MGET', unpack(names, from, math.min(from + MANY - 1, #names)))
    for index = 1, #some do raws[wanted[from + index - 1]] = some[index] end
  end
end

-- MGET returns nil for keys that are not strings. If there may be any, the library reads them one by one.
local missing
for place = 1, #KEYS do
  if raws[place] == false then
    missing = missing or {}
    missing[#missing + 1] = KEYS[place]
  end
end
for from = 1, missing and #missing or 0, MANY do
  if call('EXISTS', unpack(missing, from, math.min(from + MANY - 1, #missing))) > 0 then
    for place = 1, #KEYS do raws[place] = raws[place] or nil end
    break
  end
end

-- Decides the requests in turn. The operations are those of line.lua, bucket.lua, window.lua and sliding.lua, inlined.
local replies, places, lives, before = {}, {}, {}, 0
local operate, write
local answers, drafts
for number = 2, #ARGV do
  local plan, reply = plans[ARGV[number]], nil
  local line, charges = plan.line, plan.final
  if line then
    local place = before + 1
    local name = KEYS[place]
    if places[name] then place = places[name] else places[name] = place end
    local raw, a, b, full = raws[place], plan.a, plan.b, plan.full
    local spent, ends, spare = 0, 0, -1
    if raw then
      if #raw == 24 and sub(raw, 1, 11) == line then
        local part
        ends, part, spare = unpack_from('>I7I4I2', raw, 12)
        if ends >= now then spent = (ends - now) * b + part end
        -- More than a key may owe, or than can be counted.
        if spent > 2 * full or ends >= EXACT then raw = nil end
      else
        raw = nil
      end
    end
    local asked, room = plan.asked, full - spent
    if raw == nil then
      reply = nil
    elseif asked > room then
      local part, short = spent % b, asked - room
      local reset = (spent - part) / b
      if part > 0 then reset = reset + 1 end
      part = short % b
      local wait = (short - part) / b
      if part > 0 then wait = wait + 1 end
      if room < 0 then room = 0 end
      reply = pack('>BBI7I7I7', 0, 1, (room - room % a) / a, reset, wait)
    else
      local after, delay = spent + asked, 0
      local part = after % b
      local ahead = (after - part) / b
      local reset, whole = ahead, now + ahead
      if part > 0 then reset = reset + 1 end
      if plan.is_shaper then delay = math.ceil(spent / b) end
      if whole < EXACT then
        if asked > 0 then
          spare = spare - (whole - ends) / 1024
          if spare >= 0 then
            lives[place] = lives[place] or 0
          else
            spare, lives[place] = 3906, reset + 3906 * 1024
          end
          raws[place] = pack('>c0I7I4I2', line, whole, part, spare)
        end
        local left = room - asked
        reply = pack('>BBI7I7I7', 0, 0, (left - left % a) / a, reset, delay)
      end
    end
  end
  -- Several charges, or one to a window: first all are looked at, then all are made or none.
  if charges then
    if not answers then answers, drafts = { 0 }, {} end
    local are_allowed, answer, draft = true, 2, 1
    for first = 1, 7 * plan.count, 7 do
      local place = before + charges[first]
      local name = KEYS[place]
      if places[name] then place = places[name] else places[name] = place end
      local raw, a, b = raws[place], charges[first + 2], charges[first + 3]
      local asked, full, kind = charges[first + 4], charges[first + 5], charges[first + 6]
      local left, reset, delay
      if kind <= 3 then
        local spent, ends, spare = 0, 0, -1
        if raw then
          if #raw == 24 and sub(raw, 1, 11) == charges[first + 1] then
            local part
            ends, part, spare = unpack_from('>I7I4I2', raw, 12)
            if ends >= now then spent = (ends - now) * b + part end
            if spent > 2 * full or ends >= EXACT then raw = nil end
          else
            raw = nil
          end
        end
        local after = spent + asked
        local part = after % b
        local ahead = (after - part) / b
        if now + ahead >= EXACT then raw = nil end
        left, reset, delay = full - after, ahead, 0
        left = (left - left % a) / a
        if part > 0 then reset = reset + 1 end
        if kind == 3 then delay = math.ceil(spent / b) end
        drafts[draft], drafts[draft + 1], drafts[draft + 2] = place, spent, ahead
        drafts[draft + 3], drafts[draft + 4], drafts[draft + 5] = part, ends, spare
      elseif kind == 4 then
        local start, spent = now - now % a, 0
        reset, delay = start + a - now, 0
        -- How long the key is to live, or 0 if it lives long enough already.
        local life = reset
        if raw then
          if #raw == 25 and sub(raw, 1, 11) == charges[first + 1] then
            local begun, within = unpack_from('>I7I7', raw, 12)
            if begun == start then
              spent, life = within, 0
            elseif begun > start then
              raw = nil
            end
          else
            raw = nil
          end
        end
        if start + a >= EXACT then raw = nil end
        left = full - spent - asked
        drafts[draft], drafts[draft + 1], drafts[draft + 2], drafts[draft + 3] = place, spent, start, life
      else
        local into = now % a
        local number, young, old = (now - into) / a, 0, 0
        reset, delay = (number + 2) * a - now, 0
        local life = reset
        if raw then
          local width = (#raw - 17) / 2
          if width >= 1 and width <= 7 and width % 1 == 0 and sub(raw, 1, 11) == charges[first + 1] then
            local of, one, other = unpack_from('>I6I' .. width .. 'I' .. width, raw, 12)
            if of == number then
              young, old = one, other
              if young > 0 then life = 0 end
            elseif of == number - 1 then
              old = one
            elseif of > number then
              raw = nil
            end
          else
            raw = nil
          end
        end
        if (number + 2) * a >= EXACT then raw = nil end
        local room = full * a - (old * (a - into) + young * a)
        left = -1
        if asked * a <= room then left = (room - room % a) / a - asked end
        drafts[draft], drafts[draft + 1], drafts[draft + 2] = place, young, old
        drafts[draft + 3], drafts[draft + 4], drafts[draft + 5] = number, life, room
      end
      if raw == nil then
        charges = nil
        break
      end
      if left < 0 then are_allowed = false end
      answers[answer], answers[answer + 1], answers[answer + 2], answers[answer + 3] = 0, left, reset, delay
      answer, draft = answer + 4, draft + 6
    end
    if charges and are_allowed then
      draft = 1
      for first = 1, 7 * plan.count, 7 do
        local place, asked, kind = drafts[draft], charges[first + 4], charges[first + 6]
        if asked > 0 then
          if kind <= 3 then
            local ahead, part, spare = drafts[draft + 2], drafts[draft + 3], drafts[draft + 5]
            spare = spare - (now + ahead - drafts[draft + 4]) / 1024
            if spare >= 0 then
              lives[place] = lives[place] or 0
            else
              spare, lives[place] = 3906, (part > 0 and ahead + 1 or ahead) + 3906 * 1024
            end
            raws[place] = pack('>c0I7I4I2', charges[first + 1], now + ahead, part, spare)
          elseif kind == 4 then
            local life = drafts[draft + 3]
            lives[place] = life > 0 and life or lives[place] or 0
            raws[place] = pack('>c0I7I7', charges[first + 1], drafts[draft + 2], drafts[draft + 1] + asked)
          else
            local young, old, life, width = drafts[draft + 1] + asked, drafts[draft + 2], drafts[draft + 4], 1
            local most = young > old and young or old
            while most >= 256 do most, width = (most - most % 256) / 256, width + 1 end
            lives[place] = life > 0 and life or lives[place] or 0
            local format = '>c0I6I' .. width .. 'I' .. width
            raws[place] = pack(format, charges[first + 1], drafts[draft + 3], young, old)
          end
        end
        draft = draft + 6
      end
    elseif charges then
      answer, draft = 2, 1
      for first = 1, 7 * plan.count, 7 do
        local a, b, asked = charges[first + 2], charges[first + 3], charges[first + 4]
        local full, kind = charges[first + 5], charges[first + 6]
        local outcome, room, reset, wait = 0, 0, 0, 0
        if kind <= 3 then
          local spent = drafts[draft + 1]
          local part = spent % b
          room, reset = full - spent, (spent - part) / b
          if part > 0 then reset = reset + 1 end
          if kind == 3 then wait = reset end
          if asked > room then
            local short = asked - room
            part = short % b
            outcome, wait = 1, (short - part) / b
            if part > 0 then wait = wait + 1 end
            if room < 0 then room = 0 end
          end
          room = (room - room % a) / a
        elseif kind == 4 then
          room, reset = full - drafts[draft + 1], drafts[draft + 2] + a - now
          if asked > room then
            outcome, wait = 1, reset
            if room < 0 then room = 0 end
          end
        else
          local young, old, number = drafts[draft + 1], drafts[draft + 2], drafts[draft + 3]
          room = drafts[draft + 5]
          if young > 0 then
            reset = (number + 2) * a - now
          elseif old > 0 then
            reset = (number + 1) * a - now
          end
          if asked * a > room then
            -- Until enough of the window before has passed, or of the present one after it.
            local budget, stays, fades = (full - asked) * a, young, old
            outcome, wait = 1, number * a - now
            if stays * a > budget then stays, fades, wait = 0, young, wait + a end
            local covered = a
            if fades > 0 then covered = math.min(math.floor((budget - stays * a) / fades), a) end
            wait = wait + a - covered
            if room < 0 then room = 0 end
          end
          room = (room - room % a) / a
        end
        answers[answer], answers[answer + 1], answers[answer + 2], answers[answer + 3] = outcome, room, reset, wait
        answer, draft = answer + 4, draft + 6
      end
    end
    if charges then reply = pack(plan.format, unpack(answers, 1, 4 * plan.count + 1)) end
  end
  if not reply then
    if not operate then operate, write = library(KEYS, now, slack, raws, places, lives) end
    reply = operate(plan, before)
  end
  replies[number - 1], before = reply, before + plan.keys
end

for place = 1, #KEYS do
  local life = lives[place]
  if life == 0 then
    call('SETRANGE', KEYS[place], '0', raws[place])
  elseif life then
    call('SET', KEYS[place], raws[place], 'PX', math.ceil(life / 1000) + slack)
  end
end
if write then write() end
return replies
