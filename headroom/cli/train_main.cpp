#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <new>

#include "headroom/cli/train.h"
#include "headroom/core/error.h"

namespace headroom::internal::cli {
namespace {

void define(CLI::App& app, TrainArguments& arguments) {
  app.add_option("MODEL", arguments.model, "a network of the zoo: vgg16, resnet50, unet, gpt2, ...")->required();
  app.add_option("--batch", arguments.batch, "batch size")->required();
  app.add_option("--image", arguments.image, "height and width of the images (as published)");
  app.add_option("--tokens", arguments.network.tokens, "GPTs: length of a sequence (as published)");
  app.add_option("--layers", arguments.network.layers, "GPTs: layers");
  app.add_option("--width", arguments.network.width, "GPTs: embedding width");
  app.add_option("--heads", arguments.network.heads, "GPTs: attention heads");
  app.add_option("--vocabulary", arguments.network.vocabulary, "GPTs: vocabulary size");
  app.add_option("--classes", arguments.network.classes, "image networks: number of classes");
  app.add_option("--dropout", arguments.network.dropout, "probability of dropout");
  app.add_option("--text", arguments.text_files, "GPTs: files to train on, one token per byte (one random batch)");
  app.add_flag("--chain", arguments.join_to_chain, "join nodes until the network is a chain");

  CLI::Option* budget =
      app.add_option("--budget", arguments.budget,
                     "maximum peak of the device in a step: bytes, 512MB, 8GiB; or 0.5x, the memory in use "
                     "before a step and half of what a step of store-all adds");
  CLI::Option* planner =
      app.add_option("--planner", arguments.planner, "one of `headroom planners` (auto; without a budget store-all)");
  app.add_option("--checkpoints", arguments.checkpoints, "chains: stages whose outputs are kept, comma-separated")
      ->delimiter(',')
      ->excludes(budget)
      ->excludes(planner);
  add_planner_options(app, arguments);
  add_limits(app, arguments);

  app.add_option("--device", arguments.device, "cpu or cuda (cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""));
  app.add_option("--steps", arguments.training.steps, "optimizer steps (3)")
      ->check(CLI::Range(1, 1'000'000).description(""));
  app.add_option("--learning-rate", arguments.training.learning_rate, "learning rate of SGD (0.01)");
  app.add_option("--seed", arguments.seed, "seed of weights, batches and dropout (0)");
  app.add_flag("!--no-plain", arguments.training.plain, "skip the comparison with plain training");
  app.add_option("--trace", arguments.trace_file, "write predicted and measured memory here, as a Perfetto trace");
  app.add_option("--report", arguments.report_file, "write the report page here, as one HTML file");
  app.add_option("--out-graph", arguments.graph_file, "write the measured chain or graph here");
  app.add_option("--out-schedule", arguments.schedule_file, "write the schedule here");
  app.add_flag("--json", arguments.json, "print JSON instead of text");
  app.add_flag("!--no-chart", arguments.chart, "do not print the chart of memory");
}

int run_command(int argc, const char* const* argv) {
  CLI::App app("Trains a network inside a memory budget and compares it with plain training.", kTrainProgram);
  TrainArguments arguments;
  define(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return complain(kTrainProgram, error.what() + std::string("; `headroom-train --help` lists the options"),
                    kBadInput);
  }
  if (!arguments.budget && app.count("--planner") == 0) arguments.planner = "store-all";
  // On CUDA, so that the device's memory is not used up by gaps; read when the first tensor is made there.
  setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", /*replace=*/0);
  const ExitStatus status = run_train(arguments);
  if (!std::cout.flush()) return complain(kTrainProgram, "standard output: cannot be written", kBadInput);
  return status;
}

}  // namespace
}  // namespace headroom::internal::cli

int main(int argc, char** argv) {
  using namespace headroom;
  namespace cli = internal::cli;
  try {
    return cli::run_command(argc, argv);
  } catch (const InvalidInput& error) {
    return cli::complain(cli::kTrainProgram, error.what(), cli::kBadInput);
  } catch (const std::bad_alloc&) {
    return cli::complain_of_memory(cli::kTrainProgram);
  } catch (const std::runtime_error& error) {  // Of torch: these inputs do not suit the network, or need too much.
    return cli::complain(cli::kTrainProgram, error.what(), cli::kBadInput);
  } catch (const std::exception& error) {
    return cli::complain(cli::kTrainProgram, error.what(), cli::kBug);
  }
}
