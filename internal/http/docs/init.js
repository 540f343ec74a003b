"use strict";

SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#swagger-ui",
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  persistAuthorization: false, // the key stays out of the browser's storage
  queryConfigEnabled: false, // what is shown is this server's contract, whatever the URL says
  validatorUrl: null, // no validator of someone else's
});
