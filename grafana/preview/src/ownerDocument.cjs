// In place of the package get-document, which comes without a licence.
module.exports = (node) => (node.nodeType === Node.DOCUMENT_NODE ? node : node.ownerDocument ?? document);
