#include "headroom/plan/auto/search/candidates.h"

#include <algorithm>

#include "headroom/plan/auto/search/descent.h"

namespace headroom::internal {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

bool is_worse(const Candidate& a, const Candidate& b) {
  if (a.bound != b.bound) return a.bound < b.bound;
  return a.value != b.value ? a.value > b.value : a.position > b.position;
}

}  // namespace

void Candidates::find(const DescentOptions& options) {
  candidates_.clear();
  best_bound_ = 0;
  const int32_t first_over = excess_.first_over();
  const int32_t last_over = excess_.last_over();
  for (int32_t v = 0; v < flat_.value_count; ++v) {
    if (flat_.maker[at(v)] < 0) continue;
    const std::span<const Timeline::Event> events = now_.events(v);
    editor_.add_work(std::ssize(events));
    if (events.empty() || events.front().position >= last_over) continue;
    if (events.back().position <= first_over && flat_.is_output[at(v)] == 0) continue;
    add_reads(v, options);
  }
  std::ranges::make_heap(candidates_, is_worse);
}

void Candidates::pop() {
  std::ranges::pop_heap(candidates_, is_worse);
  candidates_.pop_back();
}

/// Adds the candidates of a value: before each of its reads and, as the options say, earlier.
void Candidates::add_reads(int32_t value, const DescentOptions& options) {
  const std::span<const Timeline::Event> events = now_.events(value);
  // The step's outputs are read at its end.
  const size_t reads = events.size() + (flat_.is_output[at(value)] != 0 ? 1 : 0);
  for (size_t k = 1; k < reads; ++k) {
    const int32_t first = events[k - 1].position + 1;
    const int32_t position = k < events.size() ? events[k].position : now_.size();
    if ((k < events.size() && events[k].is_write) || !excess_.is_over_between(first, position)) continue;
    add(value, first, position, options.noise);
    if (!options.early) continue;
    const int32_t early = last_chance(value, position);
    if (early > first && early < position && excess_.is_over_between(first, early))
      add(value, first, early, options.noise);
    if (!options.anywhere || position - first < 2) continue;
    const int32_t anywhere = first + 1 + static_cast<int32_t>(editor_.random(at(position - first - 1)));
    if (excess_.is_over_between(first, anywhere)) add(value, first, anywhere, options.noise);
  }
}

void Candidates::add(int32_t value, int32_t first, int32_t position, int noise) {
  Candidate candidate{.bound = bound_ratio(value, first, position), .noise = 1, .value = value, .position = position};
  best_bound_ = std::max(best_bound_, candidate.bound);
  if (noise > 0) {
    const auto spread = static_cast<uint64_t>(noise);
    candidate.noise = static_cast<double>(100 - spread + editor_.random(2 * spread + 1)) / 100;
    candidate.bound *= candidate.noise;
  }
  if (candidate.bound > 0) candidates_.push_back(candidate);
}

/// Returns an upper bound on the gain per time of recomputing a value before a position, if its copy is not live from
/// `first` on.
double Candidates::bound_ratio(int32_t value, int32_t first, int32_t position) const {
  const double own_gain = excess_.freed(first, position - 1, flat_.bytes[at(value)]);
  const bool is_sure = flat_.has_sure_makers[at(value)] != 0;
  double ratio = 0;
  for (const int32_t maker : is_sure ? flat_.makers(value).first(1) : flat_.makers(value)) {
    // The op's other outputs are evicted too, each from its own last use on.
    double gain = own_gain;
    for (const int32_t w : flat_.outputs(maker)) {
      if (w == value || now_.alive(w, position) == nullptr) continue;
      const int32_t last = now_.events(w)[at(now_.events_before(w, position) - 1)].position;
      gain += excess_.freed(last + 1, position - 1, flat_.bytes[at(w)]);
    }
    ratio = std::max(ratio, gain / (static_cast<double>(flat_.time_ns[at(maker)]) + parameters_.min_move_ns));
  }
  return ratio;
}

/// Returns the last position up to which all inputs of the value's recomputation are live, at most `position`.
int32_t Candidates::last_chance(int32_t value, int32_t position) const {
  int32_t chance = position;
  for (const int32_t u : flat_.inputs(flat_.maker[at(value)])) {
    if (now_.alive(u, position) != nullptr) continue;
    const int32_t k = now_.events_before(u, position);
    if (k == 0) return position;
    chance = std::min(chance, now_.events(u)[at(k - 1)].position + 1);
  }
  return chance;
}

}  // namespace headroom::internal
