#pragma once

#include "headroom/plan/plan.h"

/// Compares `auto` with the optimum among schedules that keep the base order, on `count` seeded random graphs and as many
/// chains that `exhaustive` takes, and prints the shares of optimal plans. Returns the exit status of auto_bench.
int bench_optimum(int count, headroom::Effort effort);
