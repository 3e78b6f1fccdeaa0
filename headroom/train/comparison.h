#pragma once

#include <optional>

#include "headroom/runtime/train.h"
#include "headroom/train/trainer.h"

namespace headroom::internal {

struct ComparisonOptions {
  int steps = 3;
  double learning_rate = 0.01;   ///< Learning rate of SGD.
  bool plain = true;             ///< Whether to train plainly as well.
  bool measures_memory = false;  ///< Whether to measure the memory of each step of the schedule, in the first step.
  std::function<void(size_t done, size_t all)> progress = {};  ///< Called after each training step; may be empty.
};

/// The figures of training by a plan and of plain training. Bytes are of the whole device, without what is kept on it
/// only for the comparison.
struct Comparison {
  TrainedSteps planned;
  std::optional<TrainedSteps> plain;  ///< None if it was not asked for, or ran out of the device's memory.
  Difference gradients;               ///< Over all steps.
  Difference buffers;
  bool identical = true;  ///< Whether gradients, buffers and losses have the same bits.
  MeasuredMemory memory;  ///< By step of the schedule; empty unless measured.
};

/// Trains a network from where it stands by a planned step and, in turn, plainly from the same state. At the end, the
/// network's parameters, buffers and random numbers are those of planned training, and there are no gradients.
Comparison compare_training(const Network& network, const MeasuredStep& measured, const TrainingStep& planned,
                            const std::function<Tensors()>& next_batch, Meter& meter, const ComparisonOptions& options);

}  // namespace headroom::internal
