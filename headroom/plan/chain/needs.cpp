#include "headroom/plan/chain/needs.h"

#include <algorithm>

#include "headroom/core/error.h"

namespace headroom::internal {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

/// Returns bytes in slots, rounded up and at least 0, since no segment needs less.
int64_t slots_of(int64_t bytes, int64_t slot_bytes) {
  return bytes <= 0 ? 0 : bytes / slot_bytes + (bytes % slot_bytes != 0);
}

}  // namespace

ChainMoments::ChainMoments(const Chain& chain)
    : length_(chain.length()),
      output_bytes_(at(length_) + 1),
      tape_bytes_(at(length_) + 1),
      alive_bytes_(at(length_) + 1),
      forward_workspace_bytes_(at(length_) + 1),
      recording_bytes_(at(length_) + 1),
      backward_bytes_(at(length_) + 1) {
  int64_t parameter_gradients_bytes = 0;
  int64_t least_single_bytes = 0;
  int64_t most_bytes = chain.input_gradient_bytes;
  for (int i = length_; i >= 1; --i) {
    const Stage& stage = chain.stage(i);
    output_bytes_[at(i)] = stage.output_bytes;
    tape_bytes_[at(i)] = stage.tape_bytes;
    forward_workspace_bytes_[at(i)] = stage.forward_workspace_bytes;
    recording_bytes_[at(i)] = stage.tape_bytes + stage.effective_record_workspace_bytes();
    alive_bytes_[at(i)] = (i == length_ ? 0 : stage.output_bytes) + parameter_gradients_bytes;
    backward_bytes_[at(i)] = alive_bytes(i) + stage.tape_bytes + chain.gradient_bytes(i - 1) + stage.gradient_bytes +
                             stage.backward_workspace_bytes;
    parameter_gradients_bytes += stage.gradient_bytes;
    most_bytes += stage.output_bytes + stage.tape_bytes + stage.gradient_bytes +
                  std::max({stage.forward_workspace_bytes, stage.effective_record_workspace_bytes(), int64_t{0}}) +
                  std::max<int64_t>(stage.backward_workspace_bytes, 0);
    least_single_bytes = std::min(least_single_bytes, single_bytes(i));
  }
  // Every way to reverse (i..l) contains R{l} B{l} with at least as many other bytes live as in (l..l).
  shift_bytes_ = -least_single_bytes;
  if (__builtin_add_overflow(most_bytes, shift_bytes_, &most_bytes))
    throw TooLarge("chain: sizes and negative workspaces are too large to be added in 64 bits");
  for (int i = 1; i <= length_; ++i) {
    alive_bytes_[at(i)] += shift_bytes_;
    backward_bytes_[at(i)] += shift_bytes_;
  }
}

int64_t ChainMoments::record_bytes(int i, int l) const {
  return std::max(alive_bytes(l) + recording_bytes(i), backward_bytes_[at(i)]);
}

int64_t ChainMoments::record_all_bytes() const {
  int64_t bytes = single_bytes(length_);
  for (int i = length_ - 1; i >= 1; --i) bytes = std::max(record_bytes(i, length_), bytes + tape_bytes(i));
  return bytes;
}

ChainNeeds ChainMoments::needs(int64_t slot_bytes) const {
  ChainNeeds needs;
  needs.length = length_;
  needs.output.resize(at(length_) + 1);
  needs.tape.resize(at(length_) + 1);
  needs.begin = SegmentArray<int64_t>(length_);
  needs.record = SegmentArray<int64_t>(length_);
  for (int i = 1; i <= length_; ++i) {
    needs.output[at(i)] = slots_of(output_bytes(i), slot_bytes);
    needs.tape[at(i)] = slots_of(tape_bytes(i), slot_bytes);
    needs.begin(i, i) = slots_of(single_bytes(i), slot_bytes);
    int64_t most_bytes = forward_bytes(i);
    for (int l = i + 1; l <= length_; ++l) {
      needs.begin(i, l) = slots_of(alive_bytes(l) + most_bytes, slot_bytes);
      needs.record(i, l) = std::max(needs.begin(i, l), slots_of(record_bytes(i, l), slot_bytes));
      most_bytes = std::max(most_bytes, output_bytes(l - 1) + forward_bytes(l));
    }
  }
  return needs;
}

SegmentArray<int64_t> least_memory(const ChainNeeds& needs) {
  const int length = needs.length;
  SegmentArray<int64_t> least(length);
  // columns[l][j] = output(j) + least(j+1, l), so that both operands of the loop over j are contiguous.
  std::vector<std::vector<int64_t>> columns(at(length) + 1);
  for (int l = 1; l <= length; ++l) columns[at(l)].resize(at(l));
  for (int i = length; i >= 1; --i) {
    const int64_t* row = &least(i, i);
    for (int l = i; l <= length; ++l) {
      int64_t memory = 0;
      if (i < l) {
        memory = std::max(needs.record(i, l), needs.tape[at(i)] + least(i + 1, l));
        const int64_t* column = columns[at(l)].data();
        for (int j = i; j < l; ++j) memory = std::min(memory, std::max(row[j - i], column[j]));
      }
      least(i, l) = std::max(memory, needs.begin(i, l));
      columns[at(l)][at(i - 1)] = needs.output[at(i - 1)] + least(i, l);
    }
  }
  return least;
}

SegmentArray<int64_t> record_all_memory(const ChainNeeds& needs) {
  SegmentArray<int64_t> memory(needs.length);
  for (int i = needs.length; i >= 1; --i) {
    memory(i, i) = needs.begin(i, i);
    for (int l = i + 1; l <= needs.length; ++l)
      memory(i, l) = std::max(needs.record(i, l), needs.tape[at(i)] + memory(i + 1, l));
  }
  return memory;
}

}  // namespace headroom::internal
