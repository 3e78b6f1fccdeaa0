#pragma once

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Writes a schedule of a chain's graph stage by stage, stages counted from 1, without the graph itself.
/// What must live to the end of the step is never dropped: asked to drop the input a0, the last gradient g{L} or the
/// step's output g0, it does nothing. Everything else is the caller's: simulate() says whether the result is valid.
class ChainSteps {
 public:
  explicit ChainSteps(int length) : length_(length), ids_(length) {}

  void forward(int i) { schedule_.steps.push_back(Step::run(ids_.forward(i))); }    ///< F{i}
  void record(int i) { schedule_.steps.push_back(Step::run(ids_.record(i))); }      ///< R{i}
  void backward(int i) { schedule_.steps.push_back(Step::run(ids_.backward(i))); }  ///< B{i}
  void drop_output(int i);                                                          ///< a{i}, 0..L
  void drop_tape(int i) { schedule_.steps.push_back(Step::drop(ids_.tape(i))); }    ///< t{i}, 1..L
  void drop_gradient(int i);                                                        ///< g{i}, 0..L

  /// B{i}, then drops of t{i}, a{i} and g{i}: all that stage i had and nothing needs any more.
  void backward_and_drop(int i);

  /// The steps so far; nothing is left in here.
  Schedule take();

 private:
  int length_;
  ChainIds ids_;
  Schedule schedule_;
};

}  // namespace headroom
