#include "headroom/plan/place/problem.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

struct Event {
  int64_t time;
  bool is_start;  // Of equal times starts come first, because a block is live in its last time too.
  size_t block;
};

/// Returns the starts and ends of all blocks in order of time.
std::vector<Event> events_of(const std::vector<Block>& blocks) {
  std::vector<Event> events;
  events.reserve(2 * blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    events.push_back({blocks[i].first, true, i});
    events.push_back({blocks[i].last, false, i});
  }
  std::ranges::sort(events, [](const Event& a, const Event& b) {
    return std::tuple(a.time, !a.is_start, a.block) < std::tuple(b.time, !b.is_start, b.block);
  });
  return events;
}

}  // namespace

Sections::Sections(const PlaceProblem& problem) {
  number_blocks(problem);
  int64_t sum = 0;
  for (const size_t i : source) {
    const int64_t size = problem.blocks[i].bytes;
    const int64_t padding = (problem.alignment - size % problem.alignment) % problem.alignment;
    int64_t rounded = 0;
    if (__builtin_add_overflow(size, padding, &rounded) || __builtin_add_overflow(sum, rounded, &sum))
      throw TooLarge("the sizes of all copies, rounded up to the alignment, do not add up within 64 bits");
    bytes.push_back(size);
    padded.push_back(rounded);
  }
  add_up_sections();
}

/// Finds the first and the last section of every block: a section ends where a block ends after another has started.
void Sections::number_blocks(const PlaceProblem& problem) {
  std::vector<int32_t> first_of(problem.blocks.size());
  std::vector<int32_t> last_of(problem.blocks.size());
  int32_t section = 0;
  bool has_started = false;
  for (const Event& event : events_of(problem.blocks)) {
    if (event.is_start) {
      first_of[event.block] = section;
      has_started = true;
    } else {
      section += has_started ? 1 : 0;
      last_of[event.block] = section - 1;
      has_started = false;
    }
  }
  source.resize(problem.blocks.size());
  std::iota(source.begin(), source.end(), size_t{0});
  std::ranges::stable_sort(source, {}, [&](size_t i) { return first_of[i]; });
  for (const size_t i : source) {
    first.push_back(first_of[i]);
    last.push_back(last_of[i]);
  }
  total_bytes.assign(static_cast<size_t>(section), 0);
  padding_bytes.assign(static_cast<size_t>(section), 0);
}

void Sections::add_up_sections() {
  for (size_t b = 0; b < bytes.size(); ++b) {
    const auto begin = static_cast<size_t>(first[b]);
    const auto end = static_cast<size_t>(last[b]) + 1;
    total_bytes[begin] += padded[b];
    if (end < total_bytes.size()) total_bytes[end] -= padded[b];
    if (const int64_t padding = padded[b] - bytes[b]; padding > 0)
      for (size_t s = begin; s < end; ++s) padding_bytes[s] = std::max(padding_bytes[s], padding);
  }
  std::partial_sum(total_bytes.begin(), total_bytes.end(), total_bytes.begin());
  for (size_t s = 0; s < total_bytes.size(); ++s)
    lower_bound_bytes = std::max(lower_bound_bytes, total_bytes[s] - padding_bytes[s]);
}

}  // namespace headroom::internal
