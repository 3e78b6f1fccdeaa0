#pragma once

#include <cstdint>
#include <vector>

#include "headroom/plan/problem.h"

/// Returns a training step of 20 to 100 forward layers with skips, with sizes and times from a wide range.
headroom::Graph medium_graph(uint64_t seed);

/// Returns `count` seeded random chains, small graphs and medium_graph()s each.
std::vector<headroom::Problem> random_problems(int count);
