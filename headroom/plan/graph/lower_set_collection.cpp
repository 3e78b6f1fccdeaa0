#include "headroom/plan/graph/lower_set_collection.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "headroom/plan/plan.h"

namespace headroom::internal {
namespace {

size_t at(int position) { return static_cast<size_t>(position); }

using Bits = std::vector<uint64_t>;

bool has(std::span<const uint64_t> bits, int v) { return (bits[at(v) / 64] >> (v % 64) & 1) != 0; }
void add(std::span<uint64_t> bits, int v) { bits[at(v) / 64] |= uint64_t{1} << (v % 64); }

/// The sets in the order in which they are found.
class Collection {
 public:
  Collection(const ForwardGraph& forward, int64_t limit)
      : forward_(forward), words_(at(forward.size() + 63) / 64), limit_(limit) {}

  size_t words() const { return words_; }
  int64_t count() const { return count_; }
  std::span<const uint64_t> set(int64_t i) const {
    return std::span(bits_).subspan(static_cast<size_t>(i) * words_, words_);
  }

  void push(const Bits& set) {
    if (count() == limit_) {
      throw NotApplicable("lower-sets: the graph has more than " + std::to_string(limit_) +
                          " lower sets, the most that its limits allow");
    }
    bits_.insert(bits_.end(), set.begin(), set.end());
    ++count_;
  }

  /// Adds all lower sets: for each vertex in turn, every set found so far that contains its predecessors, together with
  /// the vertex.
  void push_all() {
    push(Bits(words_, 0));
    for (int v = 0; v < forward_.size(); ++v) {
      const int64_t found = count();
      for (int64_t i = 0; i < found; ++i) {
        if (!std::ranges::all_of(forward_.predecessors[at(v)], [&](int u) { return has(set(i), u); })) continue;
        Bits larger(set(i).begin(), set(i).end());
        add(larger, v);
        push(larger);
      }
    }
  }

  void push_ancestors() {
    push(Bits(words_, 0));
    for (int v = 0; v < forward_.size(); ++v) {
      Bits ancestors(words_, 0);
      add(ancestors, v);
      for (const int u : forward_.predecessors[at(v)]) {
        const std::span<const uint64_t> others = set(u + 1);
        for (size_t w = 0; w < words_; ++w) ancestors[w] |= others[w];
      }
      push(ancestors);
    }
    push_whole();
  }

 private:
  /// Adds the whole set, unless it is the last set already.
  void push_whole() {
    Bits all(words_, 0);
    for (int v = 0; v < forward_.size(); ++v) add(all, v);
    if (!std::ranges::equal(set(count() - 1), all)) push(all);
  }

  const ForwardGraph& forward_;
  size_t words_;
  int64_t limit_;
  int64_t count_ = 0;
  std::vector<uint64_t> bits_;
};

LowerSets finished(const ForwardGraph& forward, const Collection& collection) {
  std::vector<std::pair<int, int64_t>> order;
  for (int64_t i = 0; i < collection.count(); ++i) {
    int members = 0;
    for (const uint64_t word : collection.set(i)) members += std::popcount(word);
    order.emplace_back(members, i);
  }
  std::ranges::sort(order);

  int64_t all_bytes = 0;
  for (const ForwardVertex& vertex : forward.vertices) {
    all_bytes += vertex.size_bytes;
    // A move needs at most the bytes kept, twice the bytes that it adds, and the bytes outside.
    if (all_bytes > std::numeric_limits<int64_t>::max() / 8)
      throw NotApplicable("lower-sets: the forward values are larger than 2^60 bytes together");
  }
  LowerSets sets;
  sets.vertices = forward.size();
  sets.words = collection.words();
  Bits readers(sets.words);
  Bits others(sets.words);
  for (const auto& [members, i] : order) {
    const std::span<const uint64_t> set = collection.set(i);
    sets.bits.insert(sets.bits.end(), set.begin(), set.end());
    int64_t size_bytes = 0;
    int64_t time_ns = 0;
    std::vector<int> boundary;
    std::ranges::fill(readers, 0);
    std::ranges::fill(others, 0);
    for (int v = 0; v < forward.size(); ++v) {
      if (!has(set, v)) continue;
      size_bytes += forward.vertex(v).size_bytes;
      time_ns += forward.vertex(v).time_ns;
      bool read_outside = false;
      for (const int reader : forward.successors[at(v)]) {
        if (has(set, reader)) continue;
        read_outside = true;
        if (has(readers, reader)) continue;
        add(readers, reader);
        for (const int other : forward.predecessors[at(reader)]) {
          if (!has(set, other)) add(others, other);
        }
      }
      if (read_outside) boundary.push_back(v);
    }
    int64_t outside_bytes = 0;
    for (int v = 0; v < forward.size(); ++v) {
      if (has(readers, v)) outside_bytes += forward.vertex(v).size_bytes;
      if (has(others, v)) outside_bytes += forward.vertex(v).size_bytes;
    }
    sets.size_bytes.push_back(size_bytes);
    sets.time_ns.push_back(time_ns);
    sets.boundary.push_back(std::move(boundary));
    sets.outside_bytes.push_back(outside_bytes);
  }
  return sets;
}

}  // namespace

LowerSets lower_sets(const ForwardGraph& forward, bool exact, int64_t limit) {
  Collection collection(forward, limit);
  exact ? collection.push_all() : collection.push_ancestors();
  return finished(forward, collection);
}

}  // namespace headroom::internal
