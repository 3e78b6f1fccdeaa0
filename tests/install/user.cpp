#include <headroom/core/chain.h>
#include <headroom/core/simulate.h>

int main() {
  headroom::Chain chain{
      .name = "one", .input_bytes = 1, .stages = {{.name = "loss", .output_bytes = 1, .tape_bytes = 1}}};
  const headroom::Graph graph = headroom::to_graph(chain);
  return headroom::simulate(graph, headroom::store_all(graph)).error ? 1 : 0;
}
