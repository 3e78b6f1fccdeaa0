#pragma once

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom::internal {

/// Writes a schedule of a chain's graph stage by stage, without the graph itself. Stages are counted from 1. Values
/// that must live to the end of the step are never dropped: a drop of the input a0, the last gradient g{L} or the
/// step's output g0 does nothing. The caller is responsible for all other rules; simulate() checks whether the result
/// is valid.
class ChainSteps {
 public:
  explicit ChainSteps(int length) : length_(length), ids_(length) {}

  void forward(int i) { schedule_.steps.push_back(Step::run(ids_.forward(i))); }    ///< Adds F{i}.
  void record(int i) { schedule_.steps.push_back(Step::run(ids_.record(i))); }      ///< Adds R{i}.
  void backward(int i) { schedule_.steps.push_back(Step::run(ids_.backward(i))); }  ///< Adds B{i}.
  void drop_output(int i);                                                          ///< Drops a{i}, 0..L.
  void drop_tape(int i) { schedule_.steps.push_back(Step::drop(ids_.tape(i))); }    ///< Drops t{i}, 1..L.
  void drop_gradient(int i);                                                        ///< Drops g{i}, 0..L.

  /// Adds B{i} and then drops of t{i}, a{i} and g{i}, all values of stage i that are no longer needed.
  void backward_and_drop(int i);

  /// Returns the steps so far, and leaves none.
  Schedule take();

 private:
  int length_;
  ChainIds ids_;
  Schedule schedule_;
};

}  // namespace headroom::internal
