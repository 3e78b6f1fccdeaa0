#include "headroom/plan/chain/steps.h"

#include <utility>

namespace headroom::internal {

void ChainSteps::drop_output(int i) {
  if (i > 0) schedule_.steps.push_back(Step::drop(ids_.output(i)));
}

void ChainSteps::drop_gradient(int i) {
  if (i > 0 && i < length_) schedule_.steps.push_back(Step::drop(ids_.gradient(i)));
}

void ChainSteps::backward_and_drop(int i) {
  backward(i);
  drop_tape(i);
  drop_output(i);
  drop_gradient(i);
}

Schedule ChainSteps::take() { return std::exchange(schedule_, Schedule{}); }

}  // namespace headroom::internal
