#pragma once

#include <string>
#include <string_view>

#include "headroom/core/chain.h"
#include "headroom/core/schedule.h"

namespace headroom {

/// Graphs, chains and schedules in a short form, for tests and for writing by hand. `#` begins a comment. A name that has
/// other characters than letters, digits and `_ . + * @ $ ( ) [ ] -`, or begins with `-`, is a JSON string: "layer 1".
///
///     graph tiny
///     value x 8 resident                      # name, bytes
///     op f1 5: x -> a=4                       # name, time_ns: inputs -> outputs; `=bytes` defines a value
///     op r1 5: x -> a t=3                     # a second producer of a
///     hold t x a
///     op f2 3 workspace=1 over=a: a -> loss=4
///     op b2 6 backward once: a loss -> ga=4   # once: recompute is false
///     op b1 6 backward: ga x t -> gw=2
///     outputs loss gw
///
/// Every value is defined once, by a `value` line or by `=bytes`. The values have the order of their definitions. A list may
/// name a value that is defined later.
///
///     chain two resident=100 input=4 input_gradient=0
///     stage conv forward=2 backward=4 output=3 tape=8 forward_workspace=1 backward_workspace=2 gradient=9
///     stage loss
///
/// Omitted numbers are 0, except that `input_gradient` is then `input`, and `tape` is `output`.
///
///     f1 f2 b2 -a b1 -ga                      # a schedule: run f1, …, drop a
///     f1 f2/a                                 # run f2 over a
///
/// The parsers throw InvalidInput. Messages begin with `source`, if it is not empty, and the number of the line.
Graph parse_graph_text(std::string_view text, const std::string& source = "");
Chain parse_chain_text(std::string_view text, const std::string& source = "");
Schedule parse_schedule_text(std::string_view text, const Graph& graph, const std::string& source = "");

/// Return a text that parses as an equal object. Throw InvalidInput if a name is empty or not UTF-8, and for a chain with a
/// stage whose recording has a workspace of its own.
std::string to_text(const Graph& graph);
std::string to_text(const Chain& chain);
std::string to_text(const Graph& graph, const Schedule& schedule);  ///< wrapped, without a final newline

}  // namespace headroom
