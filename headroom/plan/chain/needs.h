#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/core/chain.h"

namespace headroom {

/// One T for every segment (i..l), 1 <= i <= l <= length, of a chain; those of one i lie together.
template <typename T>
class SegmentArray {
 public:
  explicit SegmentArray(int length = 0) : length_(static_cast<size_t>(length)), items_(length_ * (length_ + 1) / 2) {}
  T& operator()(int i, int l) { return items_[position(i, l)]; }
  const T& operator()(int i, int l) const { return items_[position(i, l)]; }
  std::vector<T>& items() { return items_; }

 private:
  size_t position(int i, int l) const {
    const auto before = static_cast<size_t>(i) - 1;
    return before * length_ - before * (before + 1) / 2 + static_cast<size_t>(l) - 1;
  }
  size_t length_;
  std::vector<T> items_;
};

/// What memory reversing a chain's segments takes: the part of the `chain` recurrence that is the same whether memory
/// is counted in bytes or in slots.
///
/// *Reversing (i..l) within m* starts with a{i-1} and g{l} and the parameter gradients of the stages after l alive, and
/// ends with g{i-1} and those of the stages from i on. m counts all of them but a{i-1}, which whoever kept it has paid
/// for, and nothing that is resident (w, a0, g{L}). The ways to do it:
///
///     single   i = l:           R{i} B{i}                                needs m >= begin(i,i)
///     keep j   i <= j < l:      F{i}..F{j}, (j+1..l) within m - output(j), (i..j) within m
///     record   i < l:           R{i}, (i+1..l) within m - tape(i), B{i}  needs m >= record(i,l)
///
/// and where i < l both need m >= begin(i,l): while g{l} is alive every stage of i..l-1 must run forward, which takes
/// at least its input (if that is not a{i-1}), its output and its workspace; by R{k} with its tape dropped at once
/// where that takes less than F{k}, which costs the same time.
///
/// Memory is counted from `-shift` up, so that no segment can do with less than 0 although workspaces may be negative.
struct ChainNeeds {
  int length = 0;
  std::vector<int64_t> output;   ///< to keep a{i}, 0..L; of a0, which is resident, 0
  std::vector<int64_t> tape;     ///< to keep t{i} and a{i}, 1..L
  SegmentArray<int64_t> begin;   ///< what all ways need
  SegmentArray<int64_t> record;  ///< i < l: what recording stage i first needs, begin(i,l) included
};

/// The moments of a chain's ops in bytes: what is in memory while they run. Resident values are not in them, nor is the
/// input of a segment; `shift_bytes` is.
class ChainMoments {
 public:
  /// Assumes that lint(chain) finds nothing. Throws InvalidInput where sizes are so large that the shift does not fit.
  explicit ChainMoments(const Chain& chain);

  int length() const { return length_; }
  int64_t shift_bytes() const { return shift_bytes_; }
  int64_t output_bytes(int i) const { return output_bytes_[static_cast<size_t>(i)]; }
  int64_t tape_bytes(int i) const { return tape_bytes_[static_cast<size_t>(i)]; }
  /// To run stage i forward and keep no tape, R{i} takes less memory than F{i}.
  bool forward_by_recording(int i) const { return recording_bytes(i) < output_bytes(i) + forward_workspace(i); }

  /// The least memory for R{1}..R{L} B{L}..B{1}. O(L).
  int64_t record_all_bytes() const;

  /// Memory in slots of `slot_bytes`, every size and every need rounded up once. O(L^2).
  ChainNeeds needs(int64_t slot_bytes) const;

 private:
  /// While (i..l) is reversed: g{l} and the parameter gradients after l.
  int64_t alive_bytes(int l) const { return alive_bytes_[static_cast<size_t>(l)]; }
  int64_t record_bytes(int i, int l) const;
  int64_t single_bytes(int i) const { return record_bytes(i, i); }
  int64_t forward_workspace(int i) const { return forward_workspace_bytes_[static_cast<size_t>(i)]; }
  /// Output, tape and workspace of R{i}.
  int64_t recording_bytes(int i) const { return recording_bytes_[static_cast<size_t>(i)]; }
  /// Output and workspace of the leaner of F{i} and R{i}.
  int64_t forward_bytes(int i) const { return std::min(output_bytes(i) + forward_workspace(i), recording_bytes(i)); }

  int length_;
  int64_t shift_bytes_ = 0;
  std::vector<int64_t> output_bytes_;
  std::vector<int64_t> tape_bytes_;
  std::vector<int64_t> alive_bytes_;
  std::vector<int64_t> forward_workspace_bytes_;
  std::vector<int64_t> recording_bytes_;
  std::vector<int64_t> backward_bytes_;  ///< the whole moment of B{i}
};

/// The least m within which each segment can be reversed. O(L^3).
SegmentArray<int64_t> least_memory(const ChainNeeds& needs);

/// The least m within which each segment can be reversed by recording all of its stages. O(L^2).
SegmentArray<int64_t> record_all_memory(const ChainNeeds& needs);

}  // namespace headroom
