// Answers for an image with what `promptboost export RUN -o FOLDER --onnx` wrote:
//   npm install && node classify.mjs FOLDER image.jpg
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-node";
import sharp from "sharp";

const [folder, file] = process.argv.slice(2);
const about = JSON.parse(await readFile(`${folder}/classifier.json`, "utf-8"));
const { size, center } = about.preprocessing;

// The central square of the image, scaled to what the tower takes.
const image = sharp(file).rotate().flatten({ background: "white" }).toColourspace("srgb");
const { data, info } = await image.raw().toBuffer({ resolveWithObject: true });
const side = Math.round(center * Math.min(info.width, info.height));
const [left, top] = [info.width, info.height].map((length) => Math.floor((length - side) / 2));
const pixels = await sharp(data, { raw: info })
  .extract({ left, top, width: side, height: side })
  .resize(size, size, { kernel: "cubic" }).removeAlpha().raw().toBuffer();

const session = await ort.InferenceSession.create(`${folder}/model.onnx`);
const input = new ort.Tensor("uint8", pixels, [1, size, size, 3]);
const { probabilities } = await session.run({ pixels: input });
const best = probabilities.data.indexOf(Math.max(...probabilities.data));
console.log(JSON.stringify({ answer: about.class_names[best], probability: probabilities.data[best] }));
