#include "headroom/plan/exact/state.h"

#include <algorithm>
#include <bit>

namespace headroom::internal {
namespace {

size_t lowest(Mask mask) { return static_cast<size_t>(std::countr_zero(mask)); }

}  // namespace

void StateTable::clear() {
  entries_.clear();
  ghosts_.clear();
  slots_.assign(1024, Slot{});
}

uint32_t StateTable::hash(const State& state) {
  uint64_t hash = 0;
  const auto mix = [&](uint64_t x) {
    hash = (hash ^ x) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  };
  mix(state.alive);
  mix(state.ran_once);
  mix(state.started);
  for (const Ghost& ghost : state.ghosts) mix((uint64_t{ghost.value} << 32U) + ghost.holders);
  return static_cast<uint32_t>(hash >> 16U);
}

bool StateTable::holds(size_t number, const State& state) const {
  const Entry& entry = entries_[number];
  return entry.alive == state.alive && entry.ran_once == state.ran_once && entry.started == state.started &&
         entry.ghost_count == state.ghosts.size() &&
         std::equal(state.ghosts.begin(), state.ghosts.end(), ghosts_.begin() + entry.first_ghost);
}

std::pair<size_t, bool> StateTable::add(const State& state) {
  if (2 * entries_.size() >= slots_.size()) grow();
  const uint32_t key = hash(state);
  size_t i = key & (slots_.size() - 1);
  for (; slots_[i].entry != 0; i = (i + 1) & (slots_.size() - 1))
    if (slots_[i].hash == key && holds(slots_[i].entry - 1, state)) return {slots_[i].entry - 1, false};
  entries_.push_back({state.alive, state.ran_once, state.started, static_cast<uint32_t>(ghosts_.size()),
                      static_cast<uint32_t>(state.ghosts.size())});
  ghosts_.insert(ghosts_.end(), state.ghosts.begin(), state.ghosts.end());
  slots_[i] = {key, static_cast<uint32_t>(entries_.size())};
  return {entries_.size() - 1, true};
}

void StateTable::grow() {
  std::vector<Slot> slots(2 * slots_.size());
  for (const Slot& slot : slots_) {
    if (slot.entry == 0) continue;
    size_t i = slot.hash & (slots.size() - 1);
    while (slots[i].entry != 0) i = (i + 1) & (slots.size() - 1);
    slots[i] = slot;
  }
  slots_ = std::move(slots);
}

void StateTable::read(size_t number, State& state) const {
  const Entry& entry = entries_[number];
  state.alive = entry.alive;
  state.ran_once = entry.ran_once;
  state.started = entry.started;
  const auto first = ghosts_.begin() + entry.first_ghost;
  state.ghosts.assign(first, first + entry.ghost_count);
}

StateMemory::StateMemory(const Graph& graph) : graph_(graph), start_(graph), memory_(graph) {
  number_.resize(graph.values().size(), 0);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].resident) continue;
    number_[v] = static_cast<uint32_t>(values_.size());
    values_.push_back(value_id(v));
  }
  for (const ValueId id : values_)
    if (mask_of(graph.value(id).holds) != 0) holders_ |= bit_of(id);
  for (const Op& op : graph.ops()) outputs_.push_back(mask_of(op.outputs));
}

Mask StateMemory::mask_of(std::span<const ValueId> values) const {
  Mask mask = 0;
  for (const ValueId id : values)
    if (!graph_.value(id).resident) mask |= bit_of(id);
  return mask;
}

void StateMemory::restore(const State& state) {
  memory_ = start_;
  for (Mask rest = state.ran_once; rest != 0; rest &= rest - 1) memory_.restore_run(op_id(lowest(rest)));
  for (const Ghost& ghost : state.ghosts) memory_.restore(values_[ghost.value], false, {});
  for (Mask rest = state.alive & ~holders_; rest != 0; rest &= rest - 1)
    memory_.restore(values_[lowest(rest)], true, {});
  for (Mask rest = state.alive & holders_; rest != 0; rest &= rest - 1) {
    const ValueId holder = values_[lowest(rest)];
    held_.clear();
    for (const ValueId id : graph_.value(holder).holds) {
      held_.push_back(memory_.current_copy(id));
      for (size_t i = 0; i < state.ghosts.size(); ++i)
        if (values_[state.ghosts[i].value] == id && (state.ghosts[i].holders & bit_of(holder)) != 0)
          held_.back() = static_cast<Memory::Copy>(i);
    }
    memory_.restore(holder, true, held_);
  }
}

State StateMemory::after(const State& state, const Step& step) {
  State next{state.alive, state.ran_once, state.started, {}};
  memory_.apply(step);
  if (step.is_run()) {
    next.alive |= outputs_[index(step.op())];
    if (!graph_.op(step.op()).recompute) next.ran_once |= bit(index(step.op()));
  }
  if (!step.is_run() || step.is_over()) next.alive &= ~bit_of(step.value());
  if (memory_.held_only_count() > 0) find_ghosts(next);
  memory_.undo();
  return next;
}

void StateMemory::find_ghosts(State& state) {
  ghost_copies_.clear();
  for (Mask rest = state.alive & holders_; rest != 0; rest &= rest - 1) {
    const ValueId holder = values_[lowest(rest)];
    for (const Memory::Copy held : memory_.held_by(memory_.current_copy(holder))) {
      if (held < 0 || memory_.current_copy(memory_.value(held)) == held) continue;
      const auto known = std::ranges::find(ghost_copies_, held);
      const auto i = static_cast<size_t>(known - ghost_copies_.begin());
      if (known == ghost_copies_.end()) {
        ghost_copies_.push_back(held);
        state.ghosts.push_back({number_[index(memory_.value(held))], 0});
      }
      state.ghosts[i].holders |= static_cast<uint32_t>(bit_of(holder));
    }
  }
  std::ranges::sort(state.ghosts);
}

}  // namespace headroom::internal
