#pragma once

#include <string>
#include <vector>

#include "headroom/plan/plan.h"
#include "headroom/plan/problem.h"

/// Runs `auto` on every problem, in full and with each of its parts turned off in turn, and prints a table of what each
/// part costs in planning time and buys in plan quality.
///
/// Plans are made at six shares of store-all's peak and at the smallest budget that `auto` in full has a plan for. The
/// time of planning is processor time on one thread for the front and these seven plans. `only` has the names of the
/// parts to turn off; where it is empty, all are.
void ablate(const std::vector<headroom::Problem>& problems, headroom::Effort effort,
            const std::vector<std::string>& only);
