#pragma once

#include <string>
#include <string_view>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Graphs, chains and schedules in a short form, for tests and people. `#` begins a comment; a name that is more than
/// letters, digits and `_ . + * @ $ ( ) [ ] -` (or begins with `-`) is written as a JSON string: "layer 1".
///
///     graph tiny
///     value x 8 resident                      # name, bytes
///     op f1 5: x -> a=4                       # name, time_ns: inputs -> outputs; `=bytes` where a value is first named
///     op r1 5: x -> a t=3                     # a second producer of a
///     hold t x a
///     op f2 3 workspace=1 over=a: a -> loss=4
///     op b2 6 backward once: a loss -> ga=4   # once: recompute is false
///     op b1 6 backward: ga x t -> gw=2
///     outputs loss gw
///
/// Every value gets its bytes once, by a `value` line or by `=`, and the order of these is the order of the values; the
/// names in lists may come before that.
///
///     chain two resident=100 input=4 input_gradient=0
///     stage conv forward=2 backward=4 output=3 tape=8 forward_workspace=1 backward_workspace=2 gradient=9
///     stage loss
///
/// What is left out is 0, but for `input_gradient` (`input`) and `tape` (`output`).
///
///     f1 f2 b2 -a b1 -ga                      # a schedule: run f1, …, drop a
///     f1 f2/a                                 # run f2 over a
///
/// The parsers throw InvalidInput, which begins with `source`, where there is one, and the number of the line.
Graph parse_graph_text(std::string_view text, const std::string& source = "");
Chain parse_chain_text(std::string_view text, const std::string& source = "");
Schedule parse_schedule_text(std::string_view text, const Graph& graph, const std::string& source = "");

/// What the parsers read back as the same thing. Throws InvalidInput where a name is empty or not UTF-8, and for a
/// chain with a stage whose recording has a workspace of its own.
std::string to_text(const Graph& graph);
std::string to_text(const Chain& chain);
std::string to_text(const Graph& graph, const Schedule& schedule);  ///< wrapped, without an end of line after the last

}  // namespace headroom
