#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headroom/core/chain.h"

namespace headroom::internal {

/// A T for every segment (i..l), 1 <= i <= l <= length, of a chain. Those with the same i are adjacent in memory.
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

/// The memory that reversing a chain's segments takes: the part of the `chain` recurrence that is the same whether
/// memory is counted in bytes or in slots.
///
/// *Reversing (i..l) within m* starts with a{i-1}, g{l} and the parameter gradients of the stages after l live, and
/// ends with g{i-1} and those of the stages from i on. m counts all of them except a{i-1}, which the segment that keeps
/// it counts, and resident values (w, a0, g{L}). The ways to do it are:
///
///     single   i = l:           R{i} B{i}                                needs m >= begin(i,i)
///     keep j   i <= j < l:      F{i}..F{j}, (j+1..l) within m - output(j), (i..j) within m
///     record   i < l:           R{i}, (i+1..l) within m - tape(i), B{i}  needs m >= record(i,l)
///
/// Where i < l, both also need m >= begin(i,l): while g{l} is live, every stage of i..l-1 must run forward, which takes
/// at least its input (if that is not a{i-1}), its output and its workspace. A stage k runs forward by R{k}, whose tape
/// is dropped at once, where that takes less memory than F{k}; it takes the same time.
///
/// Memory is counted from `-shift` up, so that no segment can be reversed with less than 0 although workspaces may be
/// negative.
struct ChainNeeds {
  int length = 0;
  std::vector<int64_t> output;   ///< By stage 0..L: memory to keep a{i}; 0 for a0, which is resident.
  std::vector<int64_t> tape;     ///< By stage 1..L: memory to keep t{i} and a{i}.
  SegmentArray<int64_t> begin;   ///< Memory that every way to reverse the segment needs.
  SegmentArray<int64_t> record;  ///< For i < l: memory that recording stage i first needs, begin(i,l) included.
};

/// The moments of a chain's ops: the bytes live while they run. They include `shift_bytes`, but neither resident values
/// nor the input of a segment.
class ChainMoments {
 public:
  /// Computes the moments of a chain for which lint() finds nothing. Throws InvalidInput where sizes are so large that
  /// the shift does not fit.
  explicit ChainMoments(const Chain& chain);

  int length() const { return length_; }
  int64_t shift_bytes() const { return shift_bytes_; }
  int64_t output_bytes(int i) const { return output_bytes_[static_cast<size_t>(i)]; }
  int64_t tape_bytes(int i) const { return tape_bytes_[static_cast<size_t>(i)]; }
  /// Returns whether R{i} takes less memory than F{i} to run stage i forward without keeping a tape.
  bool forward_by_recording(int i) const { return recording_bytes(i) < output_bytes(i) + forward_workspace(i); }

  /// Returns the smallest memory for R{1}..R{L} B{L}..B{1}. Takes O(L).
  int64_t record_all_bytes() const;

  /// Returns the needs in slots of `slot_bytes`, every size and every need rounded up once. Takes O(L^2).
  ChainNeeds needs(int64_t slot_bytes) const;

 private:
  /// Returns the bytes of g{l} and of the parameter gradients after l, which are live while (i..l) is reversed.
  int64_t alive_bytes(int l) const { return alive_bytes_[static_cast<size_t>(l)]; }
  int64_t record_bytes(int i, int l) const;
  int64_t single_bytes(int i) const { return record_bytes(i, i); }
  int64_t forward_workspace(int i) const { return forward_workspace_bytes_[static_cast<size_t>(i)]; }
  /// Returns the bytes of output, tape and workspace of R{i}.
  int64_t recording_bytes(int i) const { return recording_bytes_[static_cast<size_t>(i)]; }
  /// Returns the bytes of output and workspace of F{i} or R{i}, whichever takes less.
  int64_t forward_bytes(int i) const { return std::min(output_bytes(i) + forward_workspace(i), recording_bytes(i)); }

  int length_;
  int64_t shift_bytes_ = 0;
  std::vector<int64_t> output_bytes_;
  std::vector<int64_t> tape_bytes_;
  std::vector<int64_t> alive_bytes_;
  std::vector<int64_t> forward_workspace_bytes_;
  std::vector<int64_t> recording_bytes_;
  std::vector<int64_t> backward_bytes_;  ///< By stage: the whole moment of B{i}.
};

/// Returns the smallest m within which each segment can be reversed. Takes O(L^3).
SegmentArray<int64_t> least_memory(const ChainNeeds& needs);

/// Returns the smallest m within which each segment can be reversed by recording all of its stages. Takes O(L^2).
SegmentArray<int64_t> record_all_memory(const ChainNeeds& needs);

}  // namespace headroom::internal
